#include "kernels/vector/vector.hpp"

#include <cstdio>
#include <string>
#include <vector>

#include "kernels/exp.hpp"
#include "kernels/vector/amx.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing::vector_test {
namespace {

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

TEST(Vector, RoundsLikeTheScalarType) {
  std::uint32_t s = 12345;
  for (int round = 0; round < 20000; ++round) {
    float x[lanes];
    bf16 y[lanes];
    for (float& f : x) f = std::bit_cast<float>(s = s * 1664525u + 1013904223u);
    store(y, load(x));
    for (int i = 0; i < lanes; ++i) EXPECT_EQ(y[i].bits, bf16(x[i]).bits);
    f32x16 back = load(y);
    for (int i = 0; i < lanes; ++i) EXPECT_EQ(bits_of(back[i]) >> 16, y[i].bits);
  }
}

template <class T>
void check_remainders() {
  auto x = random_values<T>(lanes, 1);
  for (int n = 1; n < lanes; ++n) {
    f32x16 v = load(x.data(), n);
    auto out = poisoned<T>(lanes), expected = out;
    store(out.data(), v + 1.0f, n);
    for (int i = 0; i < lanes; ++i) {
      auto at = static_cast<std::size_t>(i);
      EXPECT_EQ(v[i], i < n ? static_cast<float>(x[at]) : 0.0f);
      if (i < n) expected[at] = T(static_cast<float>(x[at]) + 1.0f);
    }
    EXPECT_EQ(std::memcmp(out.data(), expected.data(), sizeof(T) * lanes), 0) << n;
  }
}
TEST(Vector, RemaindersTouchNothingElse) {
  check_remainders<float>();
  check_remainders<bf16>();
  check_remainders<f16>();
}

TEST(Vector, MultiplyAddRoundsOnce) {
  auto x = random_values<float>(3 * lanes, 1);
  f32x16 r = fma(load(x.data()), load(x.data() + lanes), load(x.data() + 2 * lanes));
  for (int i = 0; i < lanes; ++i) {
    auto at = static_cast<std::size_t>(i);
    EXPECT_EQ(r[i], std::fma(x[at], x[at + lanes], x[at + 2 * lanes]));
  }
}

TEST(Vector, SumsAsATree) {
  auto x = random_values<float>(lanes, 1);
  auto tree = x;
  for (std::size_t width = 8; width > 0; width /= 2)
    for (std::size_t i = 0; i < width; ++i) tree[i] += tree[i + width];
  EXPECT_EQ(horizontal_sum(load(x.data())), tree[0]);
  EXPECT_EQ(horizontal_max(load(x.data())), *std::max_element(x.begin(), x.end()));
}

// Numbers beyond the digits of fp32 and of fp64, and halfway cases that rounding twice gets wrong.
TEST(Vector, WholeNumbersRoundOnce) {
  std::mt19937_64 engine(1);
  for (int round = 0; round < 20000; ++round) {
    std::int64_t x[lanes];
    for (std::int64_t& v : x) v = static_cast<std::int64_t>(engine()) >> (round % 64);
    if (round % 3 == 0) x[round % lanes] = (std::int64_t{1} << 60) + (std::int64_t{1} << 36) + round % 2;
    f32x16 r = load(x);
    f64x8 d = to_f64(x);
    for (int i = 0; i < lanes; ++i) EXPECT_EQ(r[i], static_cast<float>(x[i])) << x[i];
    for (int i = 0; i < 8; ++i) EXPECT_EQ(d[i], static_cast<double>(x[i])) << x[i];
  }
}

// The processor's instruction, in a build that has it, against two multiply-adds that round once each.
TEST(Vector, DotPairsRoundsTwice) {
  std::mt19937 engine(9);
  std::normal_distribution<float> normal;
  const auto number = [&] { return bf16(std::ldexp(normal(engine), static_cast<int>(engine() % 17) - 8)); };
  int rounded = 0;
  for (int round = 0; round < 5000; ++round) {
    bf16 a[2 * lanes], b[2 * lanes];
    float sums[lanes];
    for (int i = 0; i < 2 * lanes; ++i) a[i] = number(), b[i] = number();
    for (float& x : sums) x = normal(engine);
    const f32x16 r = dot_pairs(load_pairs(a), load_pairs(b), load(sums));
    for (int i = 0; i < lanes; ++i) {
      const auto term = [&](int k, float sum) { return std::fma(static_cast<float>(a[k]), static_cast<float>(b[k]), sum); };
      const float expected = term(2 * i, term(2 * i + 1, sums[i]));
      ASSERT_EQ(r[i], expected);
      rounded += expected != term(2 * i + 1, term(2 * i, sums[i]));
    }
  }
  EXPECT_GT(rounded, 1000);  // the order shows
}

// The processor's instruction, where it is there, and else what stands for it: firsts and seconds of pairs summed apart, rounded once each.
TEST(Vector, TilesOfAmxMultiply) {
  if (!amx::can_compute()) GTEST_SKIP() << "a build for AMX, and no AMX";
  std::mt19937 engine(11);
  std::normal_distribution<float> normal;
  const auto flushed = [](float x) { return std::fpclassify(x) == FP_SUBNORMAL ? 0.f : x; };
  for (int round = 0; round < 40; ++round) {
    const auto number = [&] { return bf16(std::ldexp(normal(engine), static_cast<int>(engine() % 17) - (round % 4 ? 8 : 72))); };
    std::vector<bf16> a(16 * 32 + 32), b(16 * 40);
    alignas(64) float c[16][16], computed[16][16];
    for (bf16& x : a) x = number();
    for (bf16& x : b) x = number();
    for (auto& row : c)
      for (float& x : row) x = round % 4 ? normal(engine) : 0;
    {
      const amx::TileScope scope(true);
      amx::load_tile<1>(c, 16);
      amx::load_tile<4>(a.data() + 32, 16);
      amx::load_tile<7>(b.data(), 20);
      amx::multiply_tiles<1, 4, 7>();
      amx::store_tile<1>(computed);
    }
    EXPECT_FALSE(amx::in_scope);
    for (std::size_t m = 0; m < 16; ++m)
      for (std::size_t n = 0; n < 16; ++n) {
        float sums[2] = {};
        for (std::size_t k = 0; k < 32; ++k)
          sums[k % 2] = flushed(std::fma(flushed(static_cast<float>(a[32 + m * 32 + k])),
                                         flushed(static_cast<float>(b[k / 2 * 40 + 2 * n + k % 2])), sums[k % 2]));
        ASSERT_EQ(bits_of(computed[m][n]), bits_of(flushed(c[m][n] + flushed(sums[0] + sums[1])))) << round << ": " << m << ", " << n;
      }
  }
}

TEST(Vector, PairsAreRoundedToNearestEven) {
  std::mt19937 engine(10);
  for (int round = 0; round < 5000; ++round) {
    float x[2][lanes];
    for (auto& row : x)
      for (float& f : row) {
        const auto bits = static_cast<std::uint32_t>(engine());
        f = std::bit_cast<float>(engine() % 4 ? bits : (bits & 0xffff0000u) | 0x8000u);  // a halfway case
        if (std::fpclassify(f) == FP_SUBNORMAL) f = 0;
      }
    const PairVector pairs = pairs_of(load(x[0]), load(x[1]));
    bf16 rows[2][lanes];
    for (int k = 0; k < 2; ++k) store(rows[k], load(x[k]));
    const PairVector packed = load_rows_as_pairs(rows[0], rows[1]);
    for (int i = 0; i < lanes; ++i) {
      EXPECT_EQ(pairs[i], bf16(x[0][i]).bits | static_cast<std::uint32_t>(bf16(x[1][i]).bits) << 16);
      EXPECT_EQ(packed[i], pairs[i]);
    }
  }
}

TEST(Vector, ExponentialsAreAccurate) {
  double worst = 0, worst_e = 0;
  for (float x = -87; x <= 0; x += 0.0031f) {
    double d = static_cast<double>(x);
    ASSERT_EQ(exp2_nonpositive(x), exp2_nonpositive<f32x16>(x)[5]) << x;  // one float, as a GPU has it
    ASSERT_EQ(exp_nonpositive(x), exp_nonpositive<f32x16>(x)[5]) << x;
    worst = std::max(worst, std::abs(static_cast<double>(exp2_nonpositive<f32x16>(x)[3]) / std::exp2(d) - 1));
    worst_e = std::max(worst_e, std::abs(static_cast<double>(exp_nonpositive<f32x16>(x)[3]) / std::exp(d) - 1));
  }
  EXPECT_LT(worst, 2.5e-7);
  EXPECT_LT(worst_e, 2.5e-7);
  float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (float x : {-126.f, -1000.f, -infinity}) {
    EXPECT_NEAR(exp2_nonpositive<f32x16>(x)[0], 0, 2e-38);
    EXPECT_NEAR(exp_nonpositive<f32x16>(x)[0], 0, 2e-38);
  }
  EXPECT_GE(exp_nonpositive<f32x16>(lowest_exponent)[0], std::numeric_limits<float>::min());
  EXPECT_TRUE(std::isnan(exp2_nonpositive<f32x16>(nan)[0]));
  EXPECT_TRUE(std::isnan(exp_nonpositive<f32x16>(nan)[0]));
}

TEST(Vector, LogIsWithinTwoUlp) {
  double worst = 0;
  std::mt19937 engine(8);
  for (int k = 0; k < 50000; ++k) {
    float x[lanes];
    for (float& v : x) {
      v = std::bit_cast<float>(0x00800000u + static_cast<std::uint32_t>(engine()) % (k % 2 ? 0x3f000000u : 0x7f000000u));
      if (k % 5 == 0) v = 1.0f + 1e-3f * (static_cast<float>(engine() % 2001u) - 1000.0f) * 1e-3f;
    }
    f32x16 y = log_of_normal(load(x));
    for (int i = 0; i < lanes; ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(log_of_normal(x[i])), std::bit_cast<std::uint32_t>(y[i]))
          << x[i];  // one float, as a GPU has it
      double expected = std::log(static_cast<double>(x[i])), ulp = std::ldexp(1.0, std::max(std::ilogb(expected), -126) - 23);
      if (expected != 0) worst = std::max(worst, std::abs(static_cast<double>(y[i]) - expected) / ulp);
    }
  }
  EXPECT_LT(worst, 2);
}

[[maybe_unused]] std::string output_of(const char* program) {
  std::string text;
  FILE* pipe = popen(program, "r");
  if (!pipe) return text;
  char buffer[4096];
  for (std::size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, n);
  return pclose(pipe) == 0 ? text : "failed: " + text;
}

// The target's vectors against the generic ones, over all kernels: each line names a kernel and the digest of its results.
TEST(Vector, KernelsHaveTheSameBitsWithGenericVectors) {
#ifdef TESSERA_NATIVE_DIGEST
  std::string native = output_of(TESSERA_NATIVE_DIGEST);
  EXPECT_GT(std::count(native.begin(), native.end(), '\n'), 20);
  EXPECT_EQ(native, output_of(TESSERA_GENERIC_DIGEST));
#else
  GTEST_SKIP() << "a build with sanitizers has no generic kernels";
#endif
}

}  // namespace
}  // namespace tessera::kernels::testing::vector_test
