#include "kernels/argmax/argmax.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "same_bits.hpp"

namespace tessera::kernels::testing::argmax_test {
namespace {

std::int32_t place_of_largest(const std::vector<float>& x) {
  std::int32_t index = -1;
  argmax({}, {.index = &index, .x = x.data(), .n = static_cast<std::int64_t>(x.size())});
  return index;
}

TEST(Argmax, IsTheStandardLibrarys) {
  for (std::int64_t n : {1, 2, 31, 1000, 50257}) {
    const auto x = random_values<float>(n, 4);
    EXPECT_EQ(place_of_largest(x), std::max_element(x.begin(), x.end()) - x.begin()) << n;
  }
}

TEST(Argmax, TheFirstOfEquals) {
  EXPECT_EQ(place_of_largest({1, 3, 2, 3, 3}), 1);
  EXPECT_EQ(place_of_largest({0.0f, -0.0f}), 0);
  EXPECT_EQ(place_of_largest({-0.0f, 0.0f}), 0);
  EXPECT_EQ(place_of_largest({1, INFINITY, 2}), 1);
  std::vector<float> x(300, -3.0f);
  for (std::size_t at : {299u, 290u, 200u, 65u, 64u, 17u, 0u}) {
    x[at] = 7;
    EXPECT_EQ(place_of_largest(x), static_cast<std::int32_t>(at));
  }
}

TEST(Argmax, NoneWhereAnyIsNanOrAllAreMinusInfinity) {
  const float nan = std::nanf("");
  for (std::size_t n : {1u, 15u, 64u, 300u}) {
    EXPECT_EQ(place_of_largest(std::vector<float>(n, nan)), -1) << n;
    EXPECT_EQ(place_of_largest(std::vector<float>(n, -INFINITY)), -1) << n;
    for (std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
      std::vector<float> x(n, INFINITY);
      x[at] = nan;
      EXPECT_EQ(place_of_largest(x), -1) << at << " of " << n;
    }
  }
}

TEST(Argmax, NothingHasNoLargest) { EXPECT_ANY_THROW(place_of_largest({})); }

}  // namespace
}  // namespace tessera::kernels::testing::argmax_test
