// Codes, scales and products in fp8 against their definitions in fp64.
#include "fp8_cases.hpp"
#include "gemm_cases.hpp"
#include "gemm_test_support.hpp"
#include "kernels/gemm/gemm.hpp"
#include "validation/unit/sample.hpp"

namespace tessera::kernels::testing::fp8_test {
namespace {

double value_of(DType type, std::uint8_t code) {
  const auto value = [&](auto f) {
    f.bits = code;
    return static_cast<double>(static_cast<float>(f));
  };
  return type == DType::e4m3 ? value(e4m3{}) : value(e5m2{});
}
double largest_of(DType type) { return type == DType::e4m3 ? 448 : 57344; }
std::uint8_t rounded(DType type, float x) { return type == DType::e4m3 ? e4m3(x).bits : e5m2(x).bits; }
bool in_blocks(Fp8Scaling s) { return s == Fp8Scaling::row_blocks || s == Fp8Scaling::square_blocks; }

/// Which scale the element (row, column) of a matrix of codes has.
std::int64_t scale_index(Fp8Scaling scaling, std::int64_t row, std::int64_t column, std::int64_t columns) {
  const std::int64_t blocks = ceil_div(columns, fp8_block);
  switch (scaling) {
    case Fp8Scaling::tensor:
      return 0;
    case Fp8Scaling::rows:
      return row;
    case Fp8Scaling::row_blocks:
      return row * blocks + column / fp8_block;
    case Fp8Scaling::square_blocks:
      return row / fp8_block * blocks + column / fp8_block;
  }
  return -1;
}

template <class T>
void expect_definition(const Fp8Case& c, const Fp8Size& size) {
  const auto x = fp8_values<T>(size, 1);
  const Fp8Matrix made = fp8_of(c, size, x);
  const std::int64_t columns = c.transposed ? size.rows : size.columns;
  const auto element = [&](std::int64_t at) {
    const std::int64_t i = at / columns, j = at % columns;
    return static_cast<float>(x[static_cast<std::size_t>(c.transposed ? j * size.columns + i : at)]);
  };
  std::vector<double> largest(made.scales.size());
  for (std::int64_t at = 0; at < size.rows * size.columns; ++at) {
    double& most = largest[static_cast<std::size_t>(scale_index(c.scaling, at / columns, at % columns, columns))];
    most = std::max(most, std::abs(static_cast<double>(element(at))));
  }
  std::vector<float> multipliers;
  for (std::size_t of = 0; of < largest.size(); ++of) {
    const double most = std::max(largest[of], 1e-12);
    multipliers.push_back(static_cast<float>(largest_of(c.type) / most));
    if (in_blocks(c.scaling)) {
      int exponent = -60;
      while (std::ldexp(largest_of(c.type), exponent) < most) ++exponent;
      multipliers.back() = static_cast<float>(std::ldexp(1, -exponent));
    }
    ASSERT_EQ(made.scales[of], 1.f / multipliers.back()) << of;
  }
  for (std::int64_t at = 0; at < size.rows * size.columns; ++at) {
    const float multiplier = multipliers[static_cast<std::size_t>(scale_index(c.scaling, at / columns, at % columns, columns))];
    ASSERT_EQ(made.codes[static_cast<std::size_t>(at)], rounded(c.type, element(at) * multiplier)) << at << " of " << element(at);
  }
}

TEST(Fp8, CodesAndScalesAreTheirDefinition) {
  test::Sample sample;
  for (const Fp8Case& c : sample.some(fp8_cases(), 6))
    for (const Fp8Size& size : fp8_sizes) {
      SCOPED_TRACE(fmt::format("{} x {}, scaling {}, {}, transposed {}", size.rows, size.columns, static_cast<int>(c.scaling),
                               name_of(c.type), c.transposed));
      expect_definition<bf16>(c, size);
      if (size.rows < 200) expect_definition<float>(c, size), expect_definition<f16>(c, size);
    }
}

TEST(Fp8, OfDelayedScalesCodesSaturateAndTheLargestMagnitudeJoins) {
  for (const Fp8Case& c : fp8_cases()) {
    if (c.scaling != Fp8Scaling::tensor) continue;
    for (const Fp8Size& size : fp8_sizes) {
      const std::vector<float> x = delayed_fp8_values(size);
      const DelayedFp8 made = delayed_fp8_of(c, size, x, 0);
      const std::int64_t columns = c.transposed ? size.rows : size.columns;
      float most = 0;
      for (const float value : x)
        if (std::isfinite(value)) most = std::max(most, std::abs(value));
      for (std::int64_t at = 0; at < size.rows * size.columns; ++at) {
        const std::int64_t i = at / columns, j = at % columns;
        const float value = x[static_cast<std::size_t>(c.transposed ? j * size.columns + i : at)];
        const std::uint8_t code = made.matrix.codes[static_cast<std::size_t>(at)];
        ASSERT_EQ(code, std::isfinite(value) ? rounded(c.type, value * delayed_multiplier) : 0x7f) << at << " of " << value;
      }
      EXPECT_EQ(made.matrix.scales[0], 1.f / delayed_multiplier);
      EXPECT_EQ(made.largest, most);
      EXPECT_EQ(delayed_fp8_of(c, size, x, 2 * most).largest, 2 * most);
    }
  }
}

// Each fp32 that is a code's value, a tie between two, or beyond the largest.
TEST(Fp8, VectorsRoundAsOneByOne) {
  std::vector<float> x;
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    bf16 b;
    b.bits = static_cast<std::uint16_t>(bits);
    if (const auto f = static_cast<float>(b); std::abs(f) <= 65536) x.push_back(f), x.push_back(std::nextafter(f, 0.f));
  }
  x.push_back(57344);  // the scale is 1
  for (float& f : x) f = std::clamp(f, -57344.f, 57344.f);
  const Fp8Size size{1, static_cast<std::int64_t>(x.size())};
  const Fp8Matrix made = fp8_of({.type = DType::e5m2}, size, x);
  ASSERT_EQ(made.scales[0], 1);
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(made.codes[i], e5m2(x[i]).bits) << x[i];
  for (float& f : x) f = std::clamp(f, -448.f, 448.f);
  const Fp8Matrix others = fp8_of({.type = DType::e4m3}, size, x);
  ASSERT_EQ(others.scales[0], 1);
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(others.codes[i], e4m3(x[i]).bits) << x[i];
}

TEST(Fp8, ScalesOfBlocksAreTheLeastPowersOfTwo) {
  for (const auto& [type, largest] : {std::pair{DType::e4m3, 448.f}, {DType::e5m2, 57344.f}})
    for (const int exponent : {-45, -1, 0, 3, 60}) {
      const float most = std::ldexp(largest, exponent);
      for (const auto& [x, scale] :
           {std::pair{most, exponent}, {std::nextafter(most, 0.f), exponent}, {std::nextafter(most, 1e38f), exponent + 1}})
        EXPECT_EQ(fp8_of({Fp8Scaling::row_blocks, type}, {1, 1}, std::vector<float>{-x}).scales[0], std::ldexp(1.f, scale)) << x;
    }
  // Of what lies below the least magnitude that counts: 2^e x 448 is 1e-12 or more.
  EXPECT_EQ(fp8_of({Fp8Scaling::row_blocks}, {1, 1}, std::vector<float>{0.f}).scales[0], 0x1p-48f);
  EXPECT_EQ(fp8_of({Fp8Scaling::row_blocks, DType::e5m2}, {1, 1}, std::vector<float>{1e-30f}).scales[0], 0x1p-55f);
}

TEST(Fp8, WhatIsNotFiniteMakesAllThatShareItsScaleNaN) {
  test::Sample sample;
  const Fp8Size size{200, 300};
  for (const float wild : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const Fp8Case& c : sample.some(fp8_cases(), 5)) {
      auto x = fp8_values<float>(size, 2);
      x[150 * 300 + 260] = wild;
      const Fp8Matrix made = fp8_of(c, size, x);
      const std::int64_t columns = c.transposed ? size.rows : size.columns, row = c.transposed ? 260 : 150,
                         column = c.transposed ? 150 : 260;
      for (std::int64_t at = 0; at < size.rows * size.columns; ++at) {
        const std::int64_t of = scale_index(c.scaling, at / columns, at % columns, columns);
        const bool shares = of == scale_index(c.scaling, row, column, columns);
        ASSERT_EQ(std::isnan(value_of(c.type, made.codes[static_cast<std::size_t>(at)])), shares) << at;
        ASSERT_EQ(std::isnan(made.scales[static_cast<std::size_t>(of)]), shares);
      }
    }
}

struct Product {
  Fp8Scaling a, b;
  DType a_type, b_type;
};
const Product products[] = {{Fp8Scaling::tensor, Fp8Scaling::tensor, DType::e4m3, DType::e4m3},
                            {Fp8Scaling::tensor, Fp8Scaling::tensor, DType::e5m2, DType::e4m3},
                            {Fp8Scaling::rows, Fp8Scaling::rows, DType::e4m3, DType::e4m3},
                            {Fp8Scaling::rows, Fp8Scaling::rows, DType::e5m2, DType::e4m3},
                            {Fp8Scaling::row_blocks, Fp8Scaling::square_blocks, DType::e4m3, DType::e4m3},
                            {Fp8Scaling::row_blocks, Fp8Scaling::row_blocks, DType::e4m3, DType::e4m3}};

std::vector<double> decoded(const Fp8Case& c, const Fp8Matrix& m, std::int64_t columns) {
  std::vector<double> x;
  for (std::size_t at = 0; at < m.codes.size(); ++at) {
    const auto i = static_cast<std::int64_t>(at);
    x.push_back(value_of(c.type, m.codes[at]) *
                static_cast<double>(m.scales[static_cast<std::size_t>(scale_index(c.scaling, i / columns, i % columns, columns))]));
  }
  return x;
}

/// c (M,N) of codes; `expected` in fp64, of the same codes.
Tensor multiplied(const Product& p, const GemmSize& s, int flags, std::vector<double>* expected = nullptr) {
  const Fp8Case of_a{p.a, p.a_type}, of_b{p.b, p.b_type};
  const Fp8Matrix a = fp8_of(of_a, {s.M, s.K}, fp8_values<bf16>({s.M, s.K}, 1)),
                  b = fp8_of(of_b, {s.N, s.K}, fp8_values<bf16>({s.N, s.K}, 2));
  const bool to_fp32 = flags & 1, accumulate = flags & 2, adds = (flags & 4) && !accumulate, biased = flags & 8;
  Tensor c(s.M * s.N, to_fp32 ? DType::f32 : DType::bf16), addend(s.M * s.N, c.type()), bias(s.N, DType::bf16);
  addend.randomize(5), bias.randomize(6);
  if (accumulate) c.randomize(4);
  if (expected) {
    const std::vector<double> x = decoded(of_a, a, s.K), y = decoded(of_b, b, s.K);
    for (std::int64_t i = 0; i < s.M; ++i)
      for (std::int64_t j = 0; j < s.N; ++j) {
        double sum = (biased ? bias.get(j) : 0) + (accumulate ? c.get(i * s.N + j) : 0) + (adds ? addend.get(i * s.N + j) : 0);
        for (std::int64_t k = 0; k < s.K; ++k) sum += x[static_cast<std::size_t>(i * s.K + k)] * y[static_cast<std::size_t>(j * s.K + k)];
        expected->push_back(sum);
      }
  }
  const Gemm g{.c = c.data(),
               .a = a.codes.data(),
               .b = b.codes.data(),
               .M = s.M,
               .N = s.N,
               .K = s.K,
               .b_transposed = true,
               .accumulate = accumulate,
               .in = DType::bf16,
               .out = c.type(),
               .bias = biased ? bias.data() : nullptr,
               .addend = adds ? addend.data() : nullptr,
               .fp8 = Gemm::Fp8{{p.a_type, p.a, a.scales.data()}, {p.b_type, p.b, b.scales.data()}}};
  Workspace w(gemm_workspace_bytes(g));
  gemm(w.context(), g);
  EXPECT_TRUE(w.intact());
  return c;
}

TEST(Fp8, ProductsMatchFp64OfTheirCodes) {
  test::Sample sample;
  std::vector<GemmSize> sizes(std::begin(gemm_sizes), std::end(gemm_sizes));
  sizes.insert(sizes.end(), {{300, 33, 20}, {40, 101, 513}, {66, 390, 640}});
  int flags = 0;
  for (const GemmSize& s : sample.some(sizes, 5))
    for (const Product& p : products) {
      std::vector<double> expected;
      const Tensor c = multiplied(p, s, ++flags % 16, &expected);
      EXPECT_LT(relative_error(c.doubles(), expected), tolerance(c.type()))
          << s << " scaling " << static_cast<int>(p.a) << " " << name_of(p.a_type) << " flags " << flags % 16;
    }
}

// Whole numbers, whose sums are exact in any order: the product of codes, times the product of both scales, rounded once.
TEST(Fp8, AProductOfWholeNumbersIsRoundedOnce) {
  const GemmSize s{20, 36, 192};
  std::vector<std::uint8_t> a, b;
  std::mt19937 random(7);
  const auto draw = [&] { return e4m3(static_cast<float>(static_cast<int>(random() % 17) - 8)).bits; };
  for (std::int64_t i = 0; i < s.M * s.K; ++i) a.push_back(draw());
  for (std::int64_t i = 0; i < s.N * s.K; ++i) b.push_back(draw());
  const auto scales = [](std::int64_t n, unsigned seed) {
    auto x = random_values<float>(n, seed);
    for (float& f : x) f = std::abs(f) + 0.1f;
    return x;
  };
  for (const Fp8Scaling scaling : {Fp8Scaling::tensor, Fp8Scaling::rows}) {
    const auto a_scales = scales(s.M, 1), b_scales = scales(s.N, 2);
    auto c = poisoned<bf16>(s.M * s.N);
    const Gemm g{.c = c.data(),
                 .a = a.data(),
                 .b = b.data(),
                 .M = s.M,
                 .N = s.N,
                 .K = s.K,
                 .b_transposed = true,
                 .in = DType::bf16,
                 .out = DType::bf16,
                 .fp8 = Gemm::Fp8{{DType::e4m3, scaling, a_scales.data()}, {DType::e4m3, scaling, b_scales.data()}}};
    Workspace w(gemm_workspace_bytes(g));
    gemm(w.context(), g);
    for (std::int64_t i = 0; i < s.M; ++i)
      for (std::int64_t j = 0; j < s.N; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < s.K; ++k)
          sum += value_of(DType::e4m3, a[static_cast<std::size_t>(i * s.K + k)]) *
                 value_of(DType::e4m3, b[static_cast<std::size_t>(j * s.K + k)]);
        const bool rows = scaling == Fp8Scaling::rows;
        const float scale = a_scales[rows ? static_cast<std::size_t>(i) : 0] * b_scales[rows ? static_cast<std::size_t>(j) : 0];
        ASSERT_EQ(c[static_cast<std::size_t>(i * s.N + j)].bits, bf16(static_cast<float>(sum) * scale).bits) << i << ", " << j;
      }
  }
}

TEST(Fp8, HasTheSameBitsOnAnyNumberOfThreads) {
  expect_same_bits([] {
    std::string digests;
    for (const Fp8Case& c : test::Sample().some(fp8_cases(), 6)) {
      const Fp8Size size{261, 400};
      const Fp8Matrix m = fp8_of(c, size, fp8_values<bf16>(size, 3));
      digests += digest(m.codes, m.scales).hex();
    }
    return hash_text(digests);
  });
}

}  // namespace
}  // namespace tessera::kernels::testing::fp8_test
