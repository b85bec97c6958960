#include "device_array.hpp"
#include "dropout_cases.hpp"

namespace tessera::kernels::testing::dropout_cuda_test {
namespace {

class DropoutCuda : public OnDevice {};

template <class T>
void check(std::int64_t shift) {
  for (const DropoutCase& c : dropout_cases)
    for (const bool accumulate : {false, true}) {
      const auto x = random_values<T>(c.M * c.N, 1);
      auto y = random_values<T>(c.M * c.N, 2);
      const std::vector<std::int64_t> tokens = dropout_tokens(c.M);
      DeviceArray<T> dx(x, shift), dy(y, shift);
      DeviceArray<std::int64_t> numbers(tokens);
      host::dropout({}, dropout_of(c, y.data(), x.data(), tokens.data(), dtype_of<T>(), accumulate));
      cuda::dropout({}, dropout_of(c, dy.data(), dx.data(), numbers.data(), dtype_of<T>(), accumulate));
      EXPECT_EQ(digest(dy.host()).hex(), digest(y).hex()) << c;
      if (accumulate) continue;
      cuda::dropout({}, dropout_of(c, dx.data(), dx.data(), numbers.data(), dtype_of<T>(), false));
      EXPECT_EQ(digest(dx.host()).hex(), digest(y).hex()) << c << " in place";
    }
}
TEST_F(DropoutCuda, HasTheBitsOfTheHost) {
  for (const std::int64_t shift : {0, 1}) check<float>(shift), check<bf16>(shift), check<f16>(shift);
}

TEST_F(DropoutCuda, DoesNotDependOnTheOrderOfThreads) {
  expect_same_bits_on_device([] {
    const auto x = random_values<bf16>(90 * 136, 4);
    DeviceArray<bf16> dx(x), y(std::ssize(x));
    DeviceArray<std::int64_t> tokens(dropout_tokens(90));
    cuda::dropout({}, dropout_of({90, 136, 0, 0.2}, y.data(), dx.data(), tokens.data(), DType::bf16, false));
    return digest(y.host());
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::dropout_cuda_test
