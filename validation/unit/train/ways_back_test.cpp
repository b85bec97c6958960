// When a run that goes back by itself gets no further.
#include "train/run/ways_back.hpp"

#include <gtest/gtest.h>

namespace tessera::ways_back_test {
namespace {

TEST(WaysBack, WithoutCheckpointsEachCounts) {
  WaysBack ways;
  for (int n = 1; n <= 4; ++n) {
    ways.go_back_from(21, 0);
    EXPECT_EQ(ways.times(), n);
  }
}

// Once it counted as progress to save step 20 again, and the run went back for ever.
TEST(WaysBack, WhatStoodThereBeforeIsNoProgress) {
  WaysBack ways;
  ways.go_back_from(21, 20);
  EXPECT_EQ(ways.times(), 1);
  ways.go_back_from(21, 0);   // from 20
  ways.go_back_from(21, 20);  // from 18
  EXPECT_EQ(ways.times(), 3);
  ways.go_back_from(19, 18);  // from 16, and no further than before
  EXPECT_EQ(ways.times(), 4);
}

TEST(WaysBack, BeyondTheStepTheCountBeginsAnew) {
  WaysBack ways;
  ways.go_back_from(21, 20);
  ways.go_back_from(21, 0);
  ways.go_back_from(29, 28);
  EXPECT_EQ(ways.times(), 1);
  ways.go_back_from(29, 28);
  EXPECT_EQ(ways.times(), 2);
}

// A run that was killed between counts on from what its line says.
TEST(WaysBack, CountAcrossStarts) {
  for (const std::int64_t saved_before : {0, 20, 24, 28})
    for (const std::int64_t saved_after : {0, 20, 24, 28}) {
      WaysBack whole, before;
      for (WaysBack* ways : {&whole, &before}) ways->go_back_from(21, 20), ways->go_back_from(24, 20);
      whole.go_back_from(29, std::max(saved_before, saved_after));
      WaysBack after(before.reached(), before.times(), saved_before);
      after.go_back_from(29, saved_after);
      EXPECT_EQ(after.times(), whole.times()) << saved_before << " " << saved_after;
      whole.go_back_from(29, 0), after.go_back_from(29, 0);
      EXPECT_EQ(after.times(), whole.times()) << "what was saved before counts once";
    }
}

}  // namespace
}  // namespace tessera::ways_back_test
