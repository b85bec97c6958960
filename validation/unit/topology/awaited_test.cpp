// Whom the others waited for: sums over a time that is asked for.
#include "topology/failure/awaited.hpp"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Awaited, TheLongestIsNamedWithThoseThatAreNearlyAsLong) {
  AwaitedLog log;
  EXPECT_TRUE(log.since(0).ranks.empty());
  log.add(100, 1, std::vector{2});  // before the step
  for (int second = 201; second <= 210; ++second) log.add(second, 1, std::vector{4, 5});
  log.add(211, 1, std::vector{1});
  log.add(212, 1, std::vector<int>{});
  const AwaitedRanks awaited = log.since(200);
  EXPECT_EQ(awaited.ranks, (std::vector{4, 5}));
  EXPECT_EQ(awaited.seconds, 10);
  EXPECT_FALSE(awaited.stopped);
  EXPECT_EQ(log.since(210.5).ranks, std::vector{1});
  EXPECT_TRUE(log.since(211).ranks.empty());
}

TEST(Awaited, ThisProcessIsNamedWhereItDidNotRun) {
  AwaitedLog log;
  log.add(101, 1, std::vector{3});
  log.add_own_stop(120, 19);
  const AwaitedRanks awaited = log.since(100);
  EXPECT_EQ(awaited.ranks, std::vector{0});
  EXPECT_EQ(awaited.seconds, 19);
  EXPECT_TRUE(awaited.stopped);
  EXPECT_EQ(log.since(110).seconds, 10) << "what lies before is not counted";
}

}  // namespace
}  // namespace tessera
