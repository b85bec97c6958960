#include "argmax_cases.hpp"
#include "device_array.hpp"

namespace tessera::kernels::testing::argmax_cuda_test {
namespace {

class ArgmaxCuda : public OnDevice {};

std::int32_t on_device(const std::vector<float>& x, std::int64_t shift = 0) {
  DeviceArray<float> there(x, shift);
  DeviceArray<std::int32_t> index(1);
  cuda::argmax({}, {.index = index.data(), .x = there.data(), .n = there.size()});
  return index.host()[0];
}

TEST_F(ArgmaxCuda, IsTheStandardLibrarys) {
  for (const ArgmaxCase& c : random_argmax_cases()) {
    EXPECT_EQ(on_device(c.x), c.index) << c.name;
    EXPECT_EQ(on_device(c.x, std::ssize(c.x) % 4), c.index) << c.name << ", shifted";
  }
}
TEST_F(ArgmaxCuda, TheFirstOfEquals) {
  for (const ArgmaxCase& c : equal_argmax_cases()) EXPECT_EQ(on_device(c.x), c.index) << c.name;
}
TEST_F(ArgmaxCuda, NoneWhereAnyIsNanOrAllAreMinusInfinity) {
  for (const ArgmaxCase& c : no_argmax_cases()) EXPECT_EQ(on_device(c.x), c.index) << c.name;
}

TEST_F(ArgmaxCuda, DoesNotDependOnTheOrderOfThreads) {
  std::vector<float> x(9000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7919 % 50);
  expect_same_bits_on_device([&] {
    const std::int32_t index = on_device(x);
    return hash_bytes(&index, sizeof index);
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::argmax_cuda_test
