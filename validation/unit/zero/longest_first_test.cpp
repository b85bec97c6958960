#include "zero/longest_first.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace tessera::longest_first_test {
namespace {

TEST(LongestFirst, GivesTheCostliestFirst) {
  EXPECT_EQ(longest_first(std::vector<double>{1, 5, 4, 2}, 2), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(longest_first(std::vector<double>{3, 3, 3}, 3), (std::vector<int>{0, 1, 2})) << "equals in order";
  EXPECT_EQ(longest_first(std::vector<double>{1, 2}, 1), (std::vector<int>{0, 0}));
  EXPECT_TRUE(longest_first(std::vector<double>{}, 4).empty());
}

/// No member has more than the mean and the costliest thing.
TEST(LongestFirst, Balances) {
  std::mt19937 engine(1);
  for (const int members : {2, 3, 7}) {
    std::vector<double> costs(40), load(static_cast<std::size_t>(members));
    for (double& cost : costs) cost = std::uniform_real_distribution(1.0, 9.0)(engine);
    const std::vector<int> member = longest_first(costs, members);
    for (std::size_t i = 0; i < costs.size(); ++i) load[static_cast<std::size_t>(member[i])] += costs[i];
    const double mean = std::accumulate(costs.begin(), costs.end(), 0.0) / members;
    EXPECT_LT(*std::ranges::max_element(load), 1.05 * mean) << members;
  }
}

}  // namespace
}  // namespace tessera::longest_first_test
