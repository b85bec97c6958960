#include "kernels/draw/draw.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "same_bits.hpp"
#include "validation/unit/sample.hpp"

namespace tessera::kernels::testing::draw_test {
namespace {

/// The definition, in fp64 and in the order of x.
std::int32_t by_definition(const std::vector<float>& x, double temperature, double uniform) {
  const double most = *std::max_element(x.begin(), x.end());
  std::vector<double> sum(x.size());
  std::transform(x.begin(), x.end(), sum.begin(), [&](float value) { return std::exp((static_cast<double>(value) - most) / temperature); });
  std::partial_sum(sum.begin(), sum.end(), sum.begin());
  return static_cast<std::int32_t>(std::upper_bound(sum.begin(), sum.end(), uniform * sum.back()) - sum.begin());
}

/// The definition of largest().
std::vector<std::int32_t> sorted(const std::vector<float>& x, std::int64_t k) {
  std::vector<std::int32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return x[static_cast<std::size_t>(a)] > x[static_cast<std::size_t>(b)]; });
  order.resize(static_cast<std::size_t>(k));
  std::sort(order.begin(), order.end());
  return order;
}

// Where the running sum comes within rounding of `uniform`, a neighbour is as right.
TEST(Draw, IsTheDefinitions) {
  for (std::int64_t n : {1, 2, 15, 17, 4095, 4096, 4097, 50257})
    for (double temperature : {0.3, 1.0, 5.0}) {
      const auto x = random_values<float>(n, static_cast<unsigned>(n), 3);
      int others = 0;
      const int draws = test::Sample::cases(25, 200);
      for (int i = 0; i < draws; ++i) {
        const double uniform = (i + 0.37) / draws;
        const std::int32_t drawn = draw(x, temperature, uniform), right = by_definition(x, temperature, uniform);
        others += drawn != right;
        EXPECT_LE(by_definition(x, temperature, std::max(0.0, uniform - 1e-5)), drawn) << n << " at " << uniform;
        EXPECT_GE(by_definition(x, temperature, uniform + 1e-5), drawn) << n << " at " << uniform;
      }
      EXPECT_LE(others, n < 5000 ? 2 : draws / 10) << n << " at temperature " << temperature;
    }
}

TEST(Draw, AtTheEndsTakesWhatIsPossible) {
  std::vector<float> x(10000, -INFINITY);
  x[4100] = -200, x[7000] = 0.5f, x[7001] = 0;
  for (double temperature : {1e-320, 1e-6, 1.0, 1e300}) {
    EXPECT_GE(draw(x, temperature, 0), temperature < 1e300 ? 7000 : 4100) << temperature;
    const std::int32_t last = draw(x, temperature, 1 - 0x1p-53);
    EXPECT_EQ(last, temperature < 1 ? 7000 : 7001) << temperature;
  }
  EXPECT_EQ(draw(std::vector<float>{-3e38f, 3e38f}, 1, 0), 1);
}

TEST(Draw, NoneWhereAnyIsNanOrTheLargestIsInfinite) {
  EXPECT_EQ(draw({}, 1, 0.5), -1);
  for (std::size_t n : {1u, 64u, 9000u})
    for (float other : {std::nanf(""), -std::nanf(""), INFINITY})
      for (std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
        std::vector<float> x(n, 1);
        x[at] = other;
        EXPECT_EQ(draw(x, 1, 0.5), -1) << other << " at " << at << " of " << n;
        EXPECT_EQ(largest(x, 1).empty(), std::isnan(other)) << other << " at " << at << " of " << n;
      }
  EXPECT_EQ(draw(std::vector<float>(5000, -INFINITY), 1, 0.5), -1);
}

TEST(Draw, LargestAreThoseOfASort) {
  for (std::int64_t n : {1, 63, 64, 65, 4097, 20000}) {
    auto x = random_values<float>(n, 7);
    std::vector<float> equals(x.size(), 1.0f), steps = x;
    for (float& value : steps) value = std::round(2 * value);
    for (std::size_t i = 0; i < steps.size(); i += 2) steps[i] = -INFINITY;
    for (const auto& values : {x, equals, steps})
      for (std::int64_t k : {std::int64_t{1}, std::int64_t{2}, std::int64_t{50}, n / 3, n - 1, n}) {
        if (k > 0 && k <= n) {
          EXPECT_EQ(largest(values, k), sorted(values, k)) << k << " of " << n;
        }
      }
  }
}

TEST(Draw, DoesNotDependOnThreads) {
  const auto x = random_values<float>(50257, 3, 3);
  expect_same_bits([&] {
    std::vector<std::int32_t> drawn;
    const int draws = test::Sample::cases(50, 500);
    for (int i = 0; i < draws; ++i) drawn.push_back(draw(x, 0.8, (i + 0.5) / draws));
    return digest(drawn, largest(x, 50), largest(x, 20000));
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::draw_test
