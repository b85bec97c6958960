#include "machine/rate_grid.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::rate_grid_test {
namespace {

const RateGrid grid{.axes = {{10, 1000}, {1, 4, 16}}, .rates = {1, 2, 4, 8, 16, 32}};

TEST(RateGrid, PointsAreMetExactly) {
  for (std::size_t a = 0; a < 2; ++a)
    for (std::size_t b = 0; b < 3; ++b)
      EXPECT_DOUBLE_EQ(grid.seconds_per_unit({grid.axes[0][a], grid.axes[1][b]}), 1 / grid.rates[3 * a + b]);
}

TEST(RateGrid, BetweenPointsTimeIsInterpolatedOverLogarithms) {
  EXPECT_NEAR(grid.seconds_per_unit({100, 1}), (1.0 + 1.0 / 8) / 2, 1e-12);
  EXPECT_NEAR(grid.seconds_per_unit({10, 2}), (1.0 + 0.5) / 2, 1e-12);
  EXPECT_NEAR(grid.seconds_per_unit({100, 2}), (1.0 + 0.5 + 1.0 / 8 + 1.0 / 16) / 4, 1e-12);
}

TEST(RateGrid, BeyondTheGridItsBorderCounts) {
  EXPECT_DOUBLE_EQ(grid.seconds_per_unit({1, 0.01}), 1);
  EXPECT_DOUBLE_EQ(grid.seconds_per_unit({1e9, 1e9}), 1.0 / 32);
  EXPECT_DOUBLE_EQ(grid.seconds_per_unit({10, 1e9}), 1.0 / 4);
}

TEST(RateGrid, OneRateCountsForAllSizes) {
  EXPECT_DOUBLE_EQ((RateGrid{.axes = {{1, 2}}, .rates = {5}}.seconds_per_unit({77})), 0.2);
  EXPECT_EQ(RateGrid{}.fastest(), 0);
  EXPECT_EQ(grid.fastest(), 32);
}

// What a prediction rests on: no machine becomes slower by a faster point, and none is faster than its fastest.
TEST(RateGrid, RisesWithEachRate) {
  for (std::size_t point = 0; point < grid.rates.size(); ++point) {
    RateGrid faster = grid;
    faster.rates[point] *= 1.5;
    for (double a = 5; a < 3000; a *= 1.7)
      for (double b = 0.5; b < 40; b *= 1.3) {
        EXPECT_LE(faster.seconds_per_unit({a, b}), grid.seconds_per_unit({a, b}));
        EXPECT_GE(grid.seconds_per_unit({a, b}), 1.0 / 32);
      }
  }
}

}  // namespace
}  // namespace tessera::rate_grid_test
