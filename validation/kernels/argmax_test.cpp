#include "argmax_cases.hpp"

namespace tessera::kernels::testing::argmax_test {
namespace {

std::int32_t place_of_largest(const std::vector<float>& x) {
  std::int32_t index = -1;
  argmax({}, {.index = &index, .x = x.data(), .n = static_cast<std::int64_t>(x.size())});
  return index;
}

TEST(Argmax, IsTheStandardLibrarys) {
  for (const ArgmaxCase& c : random_argmax_cases()) EXPECT_EQ(place_of_largest(c.x), c.index) << c.name;
}
TEST(Argmax, TheFirstOfEquals) {
  for (const ArgmaxCase& c : equal_argmax_cases()) EXPECT_EQ(place_of_largest(c.x), c.index) << c.name;
}
TEST(Argmax, NoneWhereAnyIsNanOrAllAreMinusInfinity) {
  for (const ArgmaxCase& c : no_argmax_cases()) EXPECT_EQ(place_of_largest(c.x), c.index) << c.name;
}

TEST(Argmax, NothingHasNoLargest) { EXPECT_ANY_THROW(place_of_largest({})); }

}  // namespace
}  // namespace tessera::kernels::testing::argmax_test
