#include "base/check.hpp"
#include "device_array.hpp"
#include "kernels/sums/sums.hpp"

namespace tessera::kernels::testing::sums_cuda_test {
namespace {

class SumsCuda : public OnDevice {};

struct Result {
  FixedSum sum;
  std::int32_t not_finite = 0;
  std::string bits() const { return hash_bytes(&sum, sizeof sum).hex() + std::to_string(not_finite); }
};

/// Both begin from a sum that is not zero: what is there is added to.
Result start() {
  Result r;
  r.sum.add(-3.25);
  return r;
}
template <class T>
Result on_host(const std::vector<T>& x) {
  Result r = start();
  host::sum_of_squares(
      {}, {.sum = &r.sum, .not_finite = &r.not_finite, .x = x.data(), .n = static_cast<std::int64_t>(x.size()), .dtype = dtype_of<T>()});
  return r;
}
template <class T>
Result on_device(const std::vector<T>& x) {
  DeviceArray<FixedSum> sum(std::vector<FixedSum>{start().sum});
  DeviceArray<std::int32_t> not_finite(std::vector<std::int32_t>{0});
  DeviceArray<T> dx(x);
  cuda::sum_of_squares({}, {.sum = sum.data(), .not_finite = not_finite.data(), .x = dx.data(), .n = dx.size(), .dtype = dtype_of<T>()});
  return {sum.host()[0], not_finite.host()[0]};
}
std::vector<std::int64_t> to_fixed(const std::vector<float>& x) {
  std::vector<std::int64_t> f;
  for (float v : x) f.push_back(std::llrint(static_cast<double>(v) * 0x1p44) * 3 + 1);
  return f;
}

TEST_F(SumsCuda, HasTheBitsOfTheHost) {
  for (std::int64_t blocks : {0, 1, 7, 8, 9, 63, 64, 65, 300}) {
    const auto x = random_values<float>(blocks * sum_block, 1, 30);
    const auto fixed = to_fixed(x);
    const std::vector<bf16> halves(x.begin(), x.end());
    EXPECT_EQ(on_device(halves).bits(), on_host(halves).bits()) << blocks;
    EXPECT_EQ(on_device(x).bits(), on_host(x).bits()) << blocks;
    EXPECT_EQ(on_device(fixed).bits(), on_host(fixed).bits()) << blocks;
  }
}

TEST_F(SumsCuda, FlagsWhatIsNotFiniteOrDoesNotFit) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e30f}) {
    for (std::size_t at : {0u, 255u, 256u, 5000u}) {
      auto x = random_values<float>(20 * sum_block, 2);
      x[at] = bad;
      const Result r = on_device(x);
      EXPECT_EQ(r.not_finite, 1);
      EXPECT_EQ(r.bits(), on_host(x).bits());
    }
  }
}

TEST_F(SumsCuda, SameBitsInEveryOrder) {
  const auto x = random_values<float>(130 * sum_block, 3);
  expect_same_bits_on_device([&] { return hash_text(on_device(x).bits()); });
}

TEST_F(SumsCuda, RefusesPartsOfBlocks) { EXPECT_THROW(cuda::sum_of_squares({}, {.n = 77}), Error); }

}  // namespace
}  // namespace tessera::kernels::testing::sums_cuda_test
