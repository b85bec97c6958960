#include "topology/devices/binding.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace tessera::binding_test {
namespace {

using Units = std::vector<int>;

/// Two packages of two cores with two hardware threads each, numbered as Linux does: siblings are 4 apart.
const NodeCores eight_units{2, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}};
const Units all = {0, 1, 2, 3, 4, 5, 6, 7};

std::vector<Units> everybody(int ranks, const Units& units = all) { return std::vector<Units>(static_cast<std::size_t>(ranks), units); }

TEST(Binding, RanksThatShareTheNodeGetConsecutiveCores) {
  Binding first = plan_binding(eight_units, everybody(2), 0), second = plan_binding(eight_units, everybody(2), 1);
  EXPECT_EQ(first.units, (Units{0, 1, 4, 5}));
  EXPECT_EQ(second.units, (Units{2, 3, 6, 7}));
  EXPECT_EQ(first.source, Binding::Source::tessera);
  EXPECT_EQ(first.threads, 2);
  EXPECT_EQ(describe(first), "2 of 4 cores in 2 packages (units 0-1,4-5), bound by local rank, 2 threads");
}

TEST(Binding, CoresThatDoNotDivideAreAllUsed) {
  std::vector<int> seen;
  for (int r = 0; r < 3; ++r) {
    Binding plan = plan_binding(eight_units, everybody(3), r);
    EXPECT_GE(plan.threads, 1);
    seen.insert(seen.end(), plan.units.begin(), plan.units.end());
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, all);
}

TEST(Binding, ALaunchersBindingStands) {
  Binding plan = plan_binding(eight_units, {{0, 4}, {1, 5}}, 1);
  EXPECT_EQ(plan.source, Binding::Source::launcher);
  EXPECT_EQ(plan.units, (Units{1, 5}));
  EXPECT_EQ(plan.threads, 1);
  // Two ranks a package: different sets exist, and this one is shared by two.
  plan = plan_binding(eight_units, {{0, 1, 4, 5}, {0, 1, 4, 5}, {2, 3, 6, 7}, {2, 3, 6, 7}}, 2);
  EXPECT_EQ(plan.source, Binding::Source::launcher);
  EXPECT_EQ(plan.sharing, 2);
  EXPECT_EQ(plan.threads, 1);
}

TEST(Binding, MoreRanksThanCoresStayUnbound) {
  Binding plan = plan_binding(eight_units, everybody(6), 5);
  EXPECT_EQ(plan.source, Binding::Source::none);
  EXPECT_EQ(plan.units, all);
  EXPECT_EQ(plan.sharing, 6);
  EXPECT_EQ(plan.threads, 1);
}

TEST(Binding, OneRankKeepsWhatItMayUse) {
  Binding plan = plan_binding(eight_units, everybody(1, {0, 2, 3}), 0);
  EXPECT_EQ(plan.source, Binding::Source::none);
  EXPECT_EQ(plan.cores, 3);
  EXPECT_EQ(plan.threads, 3);
  EXPECT_EQ(describe(plan), "3 of 4 cores in 2 packages (units 0,2-3), not bound, 3 threads");
}

TEST(Binding, RangesReadWell) {
  EXPECT_EQ(unit_ranges({}), "");
  EXPECT_EQ(unit_ranges({5}), "5");
  EXPECT_EQ(unit_ranges({0, 1, 2, 4, 6, 7}), "0-2,4,6-7");
}

// Two ranks in a step of 3 cores' time, each with a group of its own below; a third that nothing limits.
TEST(Binding, ThreadsAreNoMoreThanGroupsGrant) {
  const std::vector<std::vector<GroupCores>> groups = {{{"/step/task_0", 8}, {"/step", 3}}, {{"/step/task_1", 1.2}, {"/step", 3}}, {}};
  EXPECT_EQ(granted_cores(groups, 0), 1.5);
  EXPECT_EQ(granted_cores(groups, 1), 1.2);
  EXPECT_EQ(granted_cores(groups, 2), 0);
  for (const auto& [granted, threads] : {std::pair{0.0, 4}, {0.3, 1}, {1.99, 2}, {2.5, 2}, {3.0, 3}, {64.0, 4}}) {
    const Binding plan = plan_binding(eight_units, everybody(1), 0, granted);
    EXPECT_EQ(plan.threads, threads) << granted;
    EXPECT_EQ(describe(plan).find("granted by control groups") != std::string::npos, granted > 0) << describe(plan);
  }
}

}  // namespace
}  // namespace tessera::binding_test
