#include "base/check.hpp"
#include "device_array.hpp"
#include "sums_cases.hpp"

namespace tessera::kernels::testing::sums_cuda_test {
namespace {

class SumsCuda : public OnDevice {};

/// Both begin from a sum that is not zero: what is there is added to.
SumsResult start() {
  SumsResult r;
  r.sum.add(-3.25);
  return r;
}
template <class T>
SumsResult on_host(const std::vector<T>& x) {
  SumsResult r = start();
  host::sum_of_squares(
      {}, {.sum = &r.sum, .not_finite = &r.not_finite, .x = x.data(), .n = static_cast<std::int64_t>(x.size()), .dtype = dtype_of<T>()});
  return r;
}
template <class T>
SumsResult on_device(const std::vector<T>& x) {
  DeviceArray<FixedSum> sum(std::vector<FixedSum>{start().sum});
  DeviceArray<std::int32_t> not_finite(std::vector<std::int32_t>{0});
  DeviceArray<T> dx(x);
  cuda::sum_of_squares({}, {.sum = sum.data(), .not_finite = not_finite.data(), .x = dx.data(), .n = dx.size(), .dtype = dtype_of<T>()});
  return {sum.host()[0], not_finite.host()[0]};
}
TEST_F(SumsCuda, HasTheBitsOfTheHost) {
  for (std::int64_t blocks : sums_cases) {
    const auto x = random_values<float>(blocks * sum_block, 1, 30);
    const auto fixed = to_fixed(x, 3);
    const std::vector<bf16> halves(x.begin(), x.end());
    EXPECT_EQ(on_device(halves).bits(), on_host(halves).bits()) << blocks;
    EXPECT_EQ(on_device(x).bits(), on_host(x).bits()) << blocks;
    EXPECT_EQ(on_device(fixed).bits(), on_host(fixed).bits()) << blocks;
  }
}

TEST_F(SumsCuda, FlagsWhatIsNotFiniteOrDoesNotFit) {
  for (const BadSumsCase& c : bad_sums_cases()) {
    const auto x = c.values();
    const SumsResult r = on_device(x);
    EXPECT_EQ(r.not_finite, 1) << c.value << " at " << c.at;
    EXPECT_EQ(r.bits(), on_host(x).bits()) << c.value << " at " << c.at;
  }
}

TEST_F(SumsCuda, SameBitsInEveryOrder) {
  const auto x = random_values<float>(130 * sum_block, 3);
  expect_same_bits_on_device([&] { return hash_text(on_device(x).bits()); });
}

TEST_F(SumsCuda, RefusesPartsOfBlocks) { EXPECT_THROW(cuda::sum_of_squares({}, {.n = 77}), Error); }

}  // namespace
}  // namespace tessera::kernels::testing::sums_cuda_test
