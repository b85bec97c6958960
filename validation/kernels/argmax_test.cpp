#include "kernels/argmax/argmax.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "same_bits.hpp"

namespace tessera::kernels::testing {
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

TEST(Argmax, TheFirstOfEqualsAndNeverNan) {
  EXPECT_EQ(place_of_largest({1, 3, 2, 3, 3}), 1);
  EXPECT_EQ(place_of_largest({0.0f, -0.0f}), 0);
  EXPECT_EQ(place_of_largest({std::nanf(""), -5, std::nanf(""), -4}), 3);
  EXPECT_EQ(place_of_largest({1, INFINITY, 2}), 1);
  EXPECT_EQ(place_of_largest({std::nanf(""), -INFINITY}), 0);
}

TEST(Argmax, NothingHasNoLargest) { EXPECT_ANY_THROW(place_of_largest({})); }

}  // namespace
}  // namespace tessera::kernels::testing
