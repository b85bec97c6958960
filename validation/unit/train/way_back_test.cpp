// Where a run goes back to by itself: a function of the deck and the steps.
#include "train/folder/way_back.hpp"

#include <gtest/gtest.h>

namespace tessera::way_back_test {
namespace {

io::Ways ways_after(std::initializer_list<std::int64_t> steps, std::int64_t every) {
  io::Ways ways;
  for (const std::int64_t step : steps) count_way(ways, step, every);
  return ways;
}

TEST(WayBack, WithoutCheckpointsEachCounts) {
  EXPECT_EQ(ways_after({21}, 0).times, 1);
  EXPECT_EQ(ways_after({21, 21, 21, 21}, 0).times, 4);
}

// Once it counted as progress to save step 20 again, and the run went back for ever.
TEST(WayBack, WhatStoodThereBeforeIsNoProgress) {
  EXPECT_EQ(ways_after({21}, 2).times, 1);
  EXPECT_EQ(ways_after({21, 21, 21}, 2).times, 3);
  EXPECT_EQ(ways_after({21, 21, 21, 19}, 2).times, 4) << "no further than before";
  EXPECT_EQ(ways_after({21, 22}, 2).times, 2) << "20 stood before";
}

TEST(WayBack, BeyondTheStepTheCountBeginsAnew) {
  EXPECT_EQ(ways_after({21, 21, 29}, 2).times, 1);
  EXPECT_EQ(ways_after({21, 21, 29, 29}, 2).times, 2);
}

std::int64_t goes_to(std::int64_t every, std::int64_t keep, std::int64_t begin, std::initializer_list<std::int64_t> steps) {
  CheckpointKeys keys;
  keys.every = every, keys.keep = keep;
  return step_to_go_back_to(keys, begin, *(steps.end() - 1), ways_after(steps, every));
}

TEST(WayBack, GoesToTheNewestThatWasDue) {
  EXPECT_EQ(goes_to(6, 0, 0, {13}), 12);
  EXPECT_EQ(goes_to(6, 0, 0, {12}), 6) << "what is bad is not saved";
  EXPECT_EQ(goes_to(6, 0, 0, {6}), 0) << "new weights";
  EXPECT_EQ(goes_to(6, 0, 10, {11}), 10) << "where the run began";
  EXPECT_EQ(goes_to(6, 0, 10, {13}), 12);
  EXPECT_EQ(goes_to(6, 0, 12, {13}), 12);
}

TEST(WayBack, GoesFurtherBackEachTime) {
  EXPECT_EQ(goes_to(6, 0, 0, {21, 21}), 12);
  EXPECT_EQ(goes_to(6, 0, 0, {21, 21, 21}), 6);
  EXPECT_EQ(goes_to(6, 0, 0, {21, 21, 21, 21, 21}), 6) << "not to new weights, of which nothing that was learnt is left";
  EXPECT_EQ(goes_to(6, 0, 0, {21, 21, 14}), 6) << "third in a row, from a step before";
}

// What checkpoint.keep removes is no place to go back to, also where the run has come less far since.
TEST(WayBack, GoesToWhatIsKept) {
  EXPECT_EQ(goes_to(6, 1, 0, {21, 21, 21}), 18);
  EXPECT_EQ(goes_to(6, 2, 0, {21, 21, 21}), 12);
  EXPECT_EQ(goes_to(6, 2, 0, {21, 21, 14}), 12) << "6 went when 18 was saved";
}

io::CheckpointLine line(std::int64_t number, std::int64_t from, std::vector<io::LeftOut> left_out) {
  io::CheckpointLine line;
  line.number = number, line.from_step = from, line.way.left_out = std::move(left_out);
  return line;
}

TEST(WayBack, LeavesOutTheSameOnceMore) {
  // From 12 it left out 10 samples, from 18 ten more; then from 12 again, which a fault has made begin at 6.
  const io::Lineage lines{line(1, 0, {}), line(2, 12, {{12, 10}}), line(3, 18, {{18, 20}})};
  const std::vector<io::LeftOut> along = left_out_along(lines);
  EXPECT_EQ(along, (std::vector<io::LeftOut>{{12, 10}, {18, 20}}));
  EXPECT_EQ(left_out_by(along, 11), 0);
  EXPECT_EQ(left_out_by(along, 12), 10);
  EXPECT_EQ(left_out_by(along, 17), 10);
  EXPECT_EQ(left_out_by(along, 40), 20);
  EXPECT_EQ(left_out_from(along, 6, 1000, {}), along) << "from 6 on all is to be left out once more";
  EXPECT_EQ(left_out_from(along, 18, 1000, {}), (std::vector<io::LeftOut>{{18, 20}}));
  EXPECT_EQ(left_out_from(along, 6, 18, {{18, 40}}), (std::vector<io::LeftOut>{{12, 10}, {18, 40}})) << "of a spike after 18 the new one";
  EXPECT_EQ(left_out_along({line(1, 0, {}), line(2, 12, {{12, 10}}), line(3, 12, {{12, 30}})}), (std::vector<io::LeftOut>{{12, 30}}));
}

}  // namespace
}  // namespace tessera::way_back_test
