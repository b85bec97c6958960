// Which step stood still, and how long each rank computes: of given seconds alone.
#include "train/observe/step_pace.hpp"

#include <gtest/gtest.h>

#include "train/observe/rank_pace.hpp"
#include "train/observe/stalls.hpp"

namespace tessera {
namespace {

std::optional<Stall> pace_of(std::vector<double> before, double seconds) {
  StepPace pace;
  for (const double s : before) EXPECT_FALSE(pace.after(s)) << s;
  return pace.after(seconds);
}

TEST(StepPace, AStallIsManyTimesTheMedianAndSomeSeconds) {
  const auto stall = pace_of({0.2, 0.2, 0.3, 0.1, 0.2}, 18.2);
  ASSERT_TRUE(stall);
  EXPECT_EQ(stall->usual, 0.2);
  EXPECT_DOUBLE_EQ(stall->excess(), 18);
  EXPECT_FALSE(pace_of({0.2, 0.2, 0.2, 0.2}, 0.2 + stall_seconds - 0.01)) << "short";
  EXPECT_TRUE(pace_of({0.2, 0.2, 0.2, 0.2}, 0.21 + stall_seconds));
  EXPECT_FALSE(pace_of({30, 30, 30, 30}, stall_times * 30 - 1)) << "long, and few times the others";
  EXPECT_TRUE(pace_of({30, 30, 30, 30}, stall_times * 30 + 1));
}

TEST(StepPace, WaitingForASaveIsNoStall) {
  StepPace pace;
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(pace.after(0.2));
  EXPECT_FALSE(pace.after(18.2, 18)) << "all of it were the copies of an asynchronous save";
  const auto stall = pace.after(30.2, 12);
  ASSERT_TRUE(stall) << "it stood still beside them too";
  EXPECT_DOUBLE_EQ(stall->seconds, 18.2);
  EXPECT_EQ(stall->usual, 0.2) << "a step that copied is as long as the others";
}

TEST(StepPace, FewStepsSayNothingAndAnotherWorkBeginsAnew) {
  EXPECT_FALSE(pace_of({}, 100));
  EXPECT_FALSE(pace_of({0.1, 0.1}, 100)) << "two steps are no pace";
  StepPace pace;
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(pace.after(0.1));
  pace.forget();
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(pace.after(60)) << "a phase with longer steps";
}

TEST(StepPace, StepsThatStayLongAreThePaceAfterAWhile) {
  StepPace pace;
  for (int i = 0; i < 64; ++i) EXPECT_FALSE(pace.after(0.1));
  int stalls = 0;
  for (int i = 0; i < 64; ++i) stalls += pace.after(20).has_value();
  EXPECT_GT(stalls, 0);
  EXPECT_LE(stalls, 33);
  EXPECT_FALSE(pace.after(20));
}

TEST(Stalls, AreDescribedByWhatIsKnownOfThem) {
  const Stall stall{.seconds = 18.2, .usual = 0.2};
  const std::string slow = describe_stall(812, stall, 0.1, 4, {.ranks = {1}, .names = "rank 1 on n2", .seconds = 17});
  EXPECT_NE(
      slow.find(
          "step 812 took 18.2 s, 91 times the median of the steps before it (0.2 s): during 17 s of it the others waited for rank 1 on n2"),
      std::string::npos)
      << slow;
  EXPECT_NE(describe_stall(1, stall, 0.1, 4, {.ranks = {0}, .names = "rank 0 on n1", .seconds = 17, .stopped = true})
                .find("no thread ran on rank 0 on n1"),
            std::string::npos);
  EXPECT_NE(describe_stall(1, stall, 15, 4, {}).find("reading its batch took 15 s"), std::string::npos);
  EXPECT_NE(describe_stall(1, stall, 0.1, 1, {}).find("what stopped this process"), std::string::npos);
  EXPECT_NE(describe_stall(1, stall, 0.1, 4, {}).find("look at the network"), std::string::npos);
}

TEST(RankPace, IsAMeanOverWhatARankHasToldSince) {
  std::vector<Spent> ranks(2);
  ranks[0] = {.steps = 10, .seconds = {{"forward", 2.0}, {"backward", 3.0}}};
  ranks[1] = {.steps = 8, .seconds = {{"forward", 8.0}}};
  RankPace pace;
  EXPECT_EQ(pace.since_last(ranks), (io::NamedNumbers{{"0", 0.5}, {"1", 1.0}}));
  ranks[1].steps = 12, ranks[1].seconds["forward"] = 20;
  EXPECT_EQ(pace.since_last(ranks), (io::NamedNumbers{{"1", 3.0}})) << "rank 0 has told nothing new";
  EXPECT_TRUE(RankPace().since_last(std::vector<Spent>(most_paced_ranks + 1, Spent{.steps = 1, .seconds = {}})).empty());
}

}  // namespace
}  // namespace tessera
