#include <array>
#include <bit>
#include <cmath>

#include "base/check.hpp"
#include "device_array.hpp"
#include "fp8_cases.hpp"
#include "kernels/gemm/gemm.hpp"

namespace tessera::kernels::testing::fp8_cuda_test {
namespace {

class Fp8Cuda : public OnDevice {};
class Fp8ProductsCuda : public OnHopper {};

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

TEST_F(Fp8Cuda, DelayedScalesHaveTheBitsOfTheHost) {
  for (const Fp8Size& size : fp8_sizes)
    for (const Fp8Case& c : fp8_cases()) {
      if (c.scaling != Fp8Scaling::tensor || (watches_races() && size.rows > 128)) continue;
      const std::vector<float> x = delayed_fp8_values(size);
      const DelayedFp8 expected = delayed_fp8_of(c, size, x, 0.5f);
      DeviceArray<float> dx(x), multiplier(std::vector<float>{delayed_multiplier}), largest(std::vector<float>{0.5f}), scales(1);
      DeviceArray<std::uint8_t> codes(size.rows * size.columns);
      Fp8Quantize p = fp8_arguments(c, size, dx.data(), DType::f32, codes.data(), scales.data());
      p.delayed = {multiplier.data(), largest.data()};
      cuda::fp8_quantize({}, p);
      EXPECT_EQ(digest(codes.host(), scales.host()), digest(expected.matrix.codes, expected.matrix.scales));
      EXPECT_EQ(largest.host()[0], expected.largest);
      p.delayed.largest = nullptr;
      cuda::fp8_quantize({}, p);
      EXPECT_EQ(codes.host(), expected.matrix.codes);
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

// All numbers of bf16, as they are and times one that moves them between codes. The emulator converts by the definition, a GPU from 8.9 on
// by its instruction, and the host by integer arithmetic.
TEST_F(Fp8Cuda, EveryNumberOfBf16HasTheCodeOfTheHost) {
  if (watches_races()) GTEST_SKIP() << "256 tiles more of what others watch";
  std::vector<bf16> x(1 << 16);
  for (std::size_t bits = 0; bits < x.size(); ++bits) x[bits] = std::bit_cast<bf16>(static_cast<std::uint16_t>(bits));
  DeviceArray<bf16> dx(x);
  DeviceArray<std::uint8_t> codes(1 << 16);
  DeviceArray<float> scales(1);
  const auto expect_codes = [&]<class F>(F, DType type) {
    for (const float by : {1.f, 1.0001f, 3.4e38f}) {
      DeviceArray<float> multiplier(std::vector<float>{by});
      Fp8Quantize p{.codes = codes.data(), .scales = scales.data(), .x = dx.data(), .rows = 256, .columns = 256};
      p.type = type, p.dtype = DType::bf16, p.scaling = Fp8Scaling::tensor, p.delayed = {multiplier.data(), nullptr};
      cuda::fp8_quantize({}, p);
      const std::vector<std::uint8_t> found = codes.host();
      for (std::size_t i = 0; i < x.size(); ++i) {
        const auto value = static_cast<float>(x[i]);
        ASSERT_EQ(int{found[i]}, int{std::isfinite(value) ? F(value * by).bits : F::nan}) << value << " times " << by;
      }
    }
  };
  expect_codes(e4m3{}, DType::e4m3);
  expect_codes(e5m2{}, DType::e5m2);
}

struct ProductCase {
  std::int64_t M, N, K;
  DType type;  ///< of a's codes
  Fp8Scaling scaling;
  DType out;
  bool accumulate = false, adds = false, biased = false;
};

/// c (M,N) of a (M,K) and b (N,K) in bf16, on either backend. The weight b is packed as it lasts from update to update.
template <class Out>
std::vector<Out> product(const ProductCase& p, bool on_device) {
  const auto a = fp8_values<bf16>({p.M, p.K}, 1), b = fp8_values<bf16>({p.K, p.N}, 2);
  const auto bias = random_values<bf16>(p.N, 3);
  const auto addend = random_values<Out>(p.M * p.N, 4);
  const auto start = p.accumulate ? random_values<Out>(p.M * p.N, 5) : poisoned<Out>(p.M * p.N);
  Gemm g{.M = p.M, .N = p.N, .K = p.K, .b_transposed = false, .accumulate = p.accumulate, .in = DType::bf16, .out = p.out};
  g.fp8 = Gemm::Fp8{{p.type, p.scaling}, {DType::e4m3, p.scaling}};
  const Fp8Case of_a{p.scaling, p.type, false};
  const std::int64_t scales = fp8_scales(p.scaling, p.M, p.K);
  std::vector<Out> c = start;
  const auto run = [&](const Context& context, void* codes, void* a_scales, void* packed, const void* x, const void* w, void* to,
                       const void* add, const void* row) {
    fp8_quantize(context,
                 fp8_arguments(of_a, {p.M, p.K}, x, DType::bf16, static_cast<std::uint8_t*>(codes), static_cast<float*>(a_scales)));
    g.b = w;
    gemm_pack_b(context, packed, g);
    const PackedCodes made = packed_codes(packed, g);
    g.a = codes, g.b = made.codes, g.b_transposed = true, g.c = to;
    g.addend = p.adds ? add : nullptr, g.bias = p.biased ? row : nullptr;
    g.fp8->a.scales = static_cast<const float*>(a_scales), g.fp8->b.scales = made.scales;
    gemm(context, g);
  };
  if (!on_device) {
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(p.M * p.K));
    std::vector<float> a_scales(static_cast<std::size_t>(scales));
    std::vector<std::byte> packed(host::gemm_packed_bytes(g));
    Gemm of_codes = g;
    of_codes.b_transposed = true;
    Workspace workspace(host::gemm_workspace_bytes(of_codes));
    run(workspace.context(), codes.data(), a_scales.data(), packed.data(), a.data(), b.data(), c.data(), addend.data(), bias.data());
    return c;
  }
  DeviceArray<bf16> there_a(a), there_b(b), there_bias(bias);
  DeviceArray<Out> there_add(addend), there_c(start);
  DeviceArray<std::uint8_t> codes(p.M * p.K);
  DeviceArray<float> a_scales(scales);
  DeviceBytes packed(cuda::gemm_packed_bytes(g)), workspace(cuda::gemm_workspace_bytes(g));
  run(workspace.context(), codes.data(), a_scales.data(), packed.data(), there_a.data(), there_b.data(), there_c.data(), there_add.data(),
      there_bias.data());
  return there_c.host();
}

template <class Out>
void expect_host_product(const ProductCase& p) {
  const auto here = product<Out>(p, false), there = product<Out>(p, true);
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < here.size(); ++i) {
    const double x = static_cast<double>(static_cast<float>(here[i])), y = static_cast<double>(static_cast<float>(there[i]));
    difference += (x - y) * (x - y), norm += x * x;
  }
  // Tensor cores of Hopper keep some 14 bits of a sum between promotions.
  EXPECT_LT(std::sqrt(difference / norm), (std::is_same_v<Out, float> ? 1e-3 : 5e-3))
      << p.M << " x " << p.N << " x " << p.K << " " << name_of(p.type) << " scaling " << static_cast<int>(p.scaling);
}

TEST_F(Fp8ProductsCuda, MatchTheHost) {
  for (const Fp8Scaling scaling : {Fp8Scaling::tensor, Fp8Scaling::rows})
    for (const DType type : {DType::e4m3, DType::e5m2})
      for (const auto& [M, N, K] : {std::array<std::int64_t, 3>{16, 32, 48}, {80, 48, 160}}) {
        expect_host_product<float>({M, N, K, type, scaling, DType::f32, true});
        expect_host_product<float>({M, N, K, type, scaling, DType::f32});
        expect_host_product<bf16>({M, N, K, type, scaling, DType::bf16, false, true});
        expect_host_product<bf16>({M, N, K, type, scaling, DType::bf16, false, false, true});
      }
}

TEST_F(Fp8ProductsCuda, RefuseWhatCublasLtHasNot) {
  const auto refused = [](const ProductCase& p) { EXPECT_THROW(product<float>(p, true), Error); };
  refused({24, 32, 48, DType::e4m3, Fp8Scaling::tensor, DType::f32});
  refused({16, 32, 40, DType::e4m3, Fp8Scaling::rows, DType::f32});
  refused({16, 32, 48, DType::e4m3, Fp8Scaling::row_blocks, DType::f32});
}

}  // namespace
}  // namespace tessera::kernels::testing::fp8_cuda_test
