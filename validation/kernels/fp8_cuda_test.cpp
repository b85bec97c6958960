#include "device_array.hpp"
#include "fp8_cases.hpp"

namespace tessera::kernels::testing::fp8_cuda_test {
namespace {

class Fp8Cuda : public OnDevice {};

template <class T>
void expect_host_bits(const Fp8Case& c, const Fp8Size& size, const std::vector<T>& x) {
  const Fp8Matrix expected = fp8_of(c, size, x);
  DeviceArray<T> dx(x);
  DeviceArray<std::uint8_t> codes(static_cast<std::int64_t>(expected.codes.size()));
  DeviceArray<float> scales(static_cast<std::int64_t>(expected.scales.size()));
  cuda::fp8_quantize({}, fp8_arguments(c, size, dx.data(), dtype_of<T>(), codes.data(), scales.data()));
  EXPECT_EQ(digest(codes.host(), scales.host()), digest(expected.codes, expected.scales))
      << size.rows << " x " << size.columns << " scaling " << static_cast<int>(c.scaling) << " transposed " << c.transposed;
}

TEST_F(Fp8Cuda, CodesAndScalesHaveTheBitsOfTheHost) {
  for (const Fp8Size& size : fp8_sizes)
    for (const Fp8Case& c : fp8_cases()) {
      if (watches_races() && (size.rows > 128 || c.type == DType::e5m2)) continue;
      expect_host_bits(c, size, fp8_values<bf16>(size, 1));
      if (size.rows < 200 && !watches_races())
        expect_host_bits(c, size, fp8_values<float>(size, 2)), expect_host_bits(c, size, fp8_values<f16>(size, 3));
    }
}

TEST_F(Fp8Cuda, WhatIsNotFiniteIsNaNAsOnTheHost) {
  const Fp8Size size{40, 136};
  for (const float wild : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const Fp8Case& c : fp8_cases()) {
      auto x = fp8_values<float>(size, 4);
      x[30 * 136 + 131] = wild;
      expect_host_bits(c, size, x);
    }
}

}  // namespace
}  // namespace tessera::kernels::testing::fp8_cuda_test
