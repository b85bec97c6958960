#include "kernels/group_losses/group_losses.hpp"

#include <gtest/gtest.h>

#include "group_losses_cases.hpp"

namespace tessera::kernels::testing::group_losses_test {
namespace {

std::vector<GroupTotals> sums_of(const GroupLossesInputs& c, std::int64_t pieces) {
  std::vector<GroupTotals> totals(static_cast<std::size_t>(c.groups));
  const auto M = std::ssize(c.losses);
  for (std::int64_t p = 0; p < pieces; ++p) {
    const std::int64_t begin = M * p / pieces, end = M * (p + 1) / pieces;
    add_group_losses({}, {.totals = totals.data(),
                          .losses = c.losses.data() + begin,
                          .weights = c.weights.data() + begin,
                          .members = c.members.data() + begin,
                          .M = end - begin,
                          .groups = c.groups});
  }
  return totals;
}

// By hand: groups 0 and 2 of three; a token without weight, one of a fraction, one of no group, and one whose loss is no number.
TEST(GroupLosses, CountsTargetsOfItsGroupAlone) {
  const GroupLossesInputs c{.groups = 3,
                            .losses = {1.5f, 2, 4, 8, 16, std::nanf(""), 32},
                            .weights = {1, 0, 0.25f, 1, 1, 1, 1},
                            .members = {0, 0, 2, -1, 0, 2, 3}};
  const std::vector<GroupTotals> totals = sums_of(c, 1);
  EXPECT_EQ(totals[0].loss.value(), 17.5);
  EXPECT_EQ(totals[0].targets, 2);
  EXPECT_EQ(totals[0].weight.value(), 2);
  EXPECT_EQ(totals[1].targets, 0);
  EXPECT_EQ(totals[2].loss.value(), 4);
  EXPECT_EQ(totals[2].targets, 1);
  EXPECT_EQ(totals[2].weight.value(), 0.25);
}

TEST(GroupLosses, AreExactSumsHoweverTheTokensAreShared) {
  for (const GroupLossesCase& of : group_losses_cases) {
    SCOPED_TRACE(::testing::Message() << of);
    const GroupLossesInputs c = random_group_losses(of);
    const auto groups = static_cast<std::size_t>(of.groups);
    std::vector<long double> exact(groups), weight(groups);
    std::vector<std::int64_t> counts(groups);
    for (std::size_t t = 0; t < c.losses.size(); ++t)
      if (c.weights[t] != 0 && c.members[t] >= 0) {
        weight[static_cast<std::size_t>(c.members[t])] += static_cast<long double>(c.weights[t]);
        exact[static_cast<std::size_t>(c.members[t])] += static_cast<long double>(c.losses[t]);
        ++counts[static_cast<std::size_t>(c.members[t])];
      }
    for (const std::int64_t pieces : {std::int64_t{1}, std::int64_t{2}, std::int64_t{7}, of.tokens}) {
      const std::vector<GroupTotals> totals = sums_of(c, pieces);
      for (std::size_t g = 0; g < groups; ++g) {
        EXPECT_EQ(totals[g].loss.value(), static_cast<double>(exact[g])) << pieces << " pieces";
        EXPECT_EQ(totals[g].weight.value(), static_cast<double>(weight[g])) << pieces << " pieces";
        EXPECT_EQ(totals[g].targets, counts[g]);
        if (of.tokens > 20 * of.groups) {
          EXPECT_GT(counts[g], 5);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::kernels::testing::group_losses_test
