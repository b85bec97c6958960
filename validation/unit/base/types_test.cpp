// Rounding to bf16, f16 and the types of 8 bits against a search for the nearest value and against F16C, shapes, and numbers for people.
#include "base/types.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#ifdef __F16C__
#include <immintrin.h>
#endif

#include "base/check.hpp"

namespace tessera::types_test {
namespace {

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

double value_of(std::uint16_t bits) {
  bf16 b;
  b.bits = bits;
  return static_cast<double>(static_cast<float>(b));
}

/// Nearest bf16 of a finite fp32 found from its two neighbours in exact arithmetic; a tie goes to the even one.
std::uint16_t nearest(float f) {
  const auto below = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(f) >> 16);  // towards zero
  const auto above = static_cast<std::uint16_t>(below + 1);
  // The largest finite bf16 is followed by what would be the next power of two, were there one.
  const bool last = (below & 0x7fffu) == 0x7f7fu;
  const double high = last ? std::copysign(0x1p128, f) : value_of(above), low = value_of(below);
  const double down = std::abs(f - low), up = std::abs(high - f);
  if (down != up) return down < up ? below : above;
  return (below & 1u) == 0 ? below : above;
}

TEST(Types, FloatTypesAreKnownByTheirNamesAndNoOthers) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) EXPECT_EQ(float_type_of(name_of(type)), type);
  for (const DType type : {DType::i64, DType::u16, DType::u32, DType::e4m3, DType::e5m2})
    EXPECT_EQ(float_type_of(name_of(type)), std::nullopt);
  EXPECT_EQ(float_type_of("fp8"), std::nullopt);
}

TEST(Bf16, RoundsToNearestEven) {
  std::mt19937 random(1);
  for (int i = 0; i < 300000; ++i) {
    std::uint32_t bits = random();
    if (i % 3 == 0) bits = (bits & 0xffff0000u) | 0x8000u;                           // ties
    if (i % 3 == 1) bits = (bits & 0xffff0000u) | (0x7fffu + random() % 3u);         // just beside ties
    if (i % 7 == 0) bits &= 0x807fffffu;                                             // denormals
    if (i % 11 == 0) bits = (bits & 0x80000000u) | (0x7f7f0000u + bits % 0x10000u);  // around the largest value
    const float f = from_bits(bits);
    if (!std::isfinite(f)) continue;
    ASSERT_EQ(bf16(f).bits, nearest(f)) << std::hexfloat << f;
  }
}

TEST(Bf16, KeepsItsOwnValues) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    bf16 b;
    b.bits = static_cast<std::uint16_t>(bits);
    const auto f = static_cast<float>(b);
    if (std::isnan(f))
      EXPECT_TRUE(std::isnan(static_cast<float>(bf16(f)))) << bits;
    else
      ASSERT_EQ(bf16(f).bits, bits);
  }
}

TEST(Bf16, NanOfAnyPayloadStaysNan) {
  // A payload in the lower half alone would round to infinity, and one of all ones would wrap to zero.
  for (std::uint32_t bits : {0x7f800001u, 0x7f80ffffu, 0x7fffffffu, 0xffffffffu, 0xff800001u, 0x7fc00000u}) {
    const bf16 b(from_bits(bits));
    EXPECT_TRUE(std::isnan(static_cast<float>(b))) << std::hex << bits;
    EXPECT_EQ(b.bits >> 15, bits >> 31) << "the sign of " << std::hex << bits;
  }
}

TEST(Bf16, InfinityZeroAndOverflow) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(bf16(infinity).bits, 0x7f80);
  EXPECT_EQ(bf16(-infinity).bits, 0xff80);
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(bf16(from_bits(0x7f7f7fffu)).bits, 0x7f7f);  // below the tie
  EXPECT_EQ(bf16(from_bits(0x7f7f8000u)).bits, 0x7f80);  // the tie: the odd largest value gives way
  EXPECT_EQ(bf16(-0.0f).bits, 0x8000);
  EXPECT_EQ(bf16(from_bits(0x00000001u)).bits, 0);
  EXPECT_EQ(bf16(from_bits(0x00008001u)).bits, 1);
}

/// What the bits of a half stand for, by its definition.
double value_of_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double magnitude = exponent == 31  ? (fraction ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity())
                           : exponent == 0 ? std::ldexp(fraction, -24)
                                           : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

f16 half_of(std::uint32_t bits) {
  f16 h;
  h.bits = static_cast<std::uint16_t>(bits);
  return h;
}

TEST(F16, StandsForTheValuesOfItsDefinitionAndKeepsThem) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const f16 h = half_of(bits);
    const auto f = static_cast<float>(h);
    const double wanted = value_of_half(h.bits);
    if (std::isnan(wanted)) {
      ASSERT_TRUE(std::isnan(f)) << bits;
      EXPECT_EQ(f16(f).bits, bits | 0x200u) << "a NaN keeps what fits of its payload";
    } else {
      ASSERT_EQ(static_cast<double>(f), wanted) << bits;
      ASSERT_EQ(f16(f).bits, bits);
    }
#ifdef __F16C__
    ASSERT_EQ(std::bit_cast<std::uint32_t>(f), std::bit_cast<std::uint32_t>(_cvtsh_ss(h.bits))) << bits;
#endif
  }
}

/// Nearest f16 of a finite fp32, found between two neighbours in exact arithmetic; a tie goes to the even one.
std::uint16_t nearest_half(float f) {
  const double magnitude = std::abs(static_cast<double>(f));
  std::uint16_t low = 0, high = 0x7c00;  // bits rise with values; what follows the largest value would be 2^16
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (value_of_half(middle) <= magnitude ? low : high) = middle;
  }
  const double above = high == 0x7c00 ? 0x1p16 : value_of_half(high), up = above - magnitude, down = magnitude - value_of_half(low);
  const std::uint16_t found = up < down || (up == down && low % 2 == 1) ? high : low;
  return static_cast<std::uint16_t>(found | (std::signbit(f) ? 0x8000u : 0u));
}

TEST(F16, RoundsToNearestEven) {
  std::mt19937 random(2);
  for (int i = 0; i < 300000; ++i) {
    std::uint32_t bits = random();
    if (i % 2 == 0)
      bits = (bits & 0x80000000u) | (0x33000000u + bits % (0x47800000u - 0x33000000u));  // of the range of halves: 2^-25 to 2^16
    if (i % 3 == 0) bits = (bits & 0xffffe000u) | 0x1000u;                               // ties
    if (i % 3 == 1) bits = (bits & 0xffffe000u) | (0xfffu + random() % 3u);              // just beside ties
    const float f = from_bits(bits);
    if (!std::isnan(f)) {
      ASSERT_EQ(f16(f).bits, nearest_half(f)) << std::hexfloat << f;
    }
#ifdef __F16C__
    ASSERT_EQ(f16(f).bits, _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT)) << std::hexfloat << f;
#endif
  }
  // Ties and their neighbours of every half, subnormals and the step to infinity among them.
  for (std::uint32_t low = 0; low < 0x7c00u; ++low) {
    const double above = low == 0x7bffu ? 0x1p16 : value_of_half(static_cast<std::uint16_t>(low + 1));
    const auto tie = static_cast<float>((value_of_half(static_cast<std::uint16_t>(low)) + above) / 2);  // exact in fp32
    const std::uint32_t even = low + low % 2;
    ASSERT_EQ(f16(tie).bits, even) << low;
    ASSERT_EQ(f16(std::nextafter(tie, 0.f)).bits, low);
    ASSERT_EQ(f16(-std::nextafter(tie, 1e9f)).bits, 0x8000u | (low + 1));
  }
}

TEST(F16, InfinityZeroAndNan) {
  EXPECT_EQ(f16(65519.99f).bits, 0x7bff);
  EXPECT_EQ(f16(65520.f).bits, 0x7c00);
  EXPECT_EQ(f16(-1e30f).bits, 0xfc00);
  EXPECT_EQ(f16(-0.0f).bits, 0x8000);
  EXPECT_EQ(f16(0x1p-25f).bits, 0);
  EXPECT_EQ(f16(0x1.000002p-25f).bits, 1);
  for (std::uint32_t bits : {0x7f800001u, 0x7f80ffffu, 0x7fffffffu, 0xffffffffu, 0xff800001u, 0x7fc00000u}) {
    const f16 h(from_bits(bits));
    EXPECT_TRUE(std::isnan(static_cast<float>(h))) << std::hex << bits;
    EXPECT_EQ(h.bits >> 15, bits >> 31) << "the sign of " << std::hex << bits;
  }
}

/// What the bits of a float of 8 bits stand for, by its definition: `fraction` bits, exponents from 1 - bias; E4M3 has no infinity and NaN
/// in its last place alone.
double value_of_float8(unsigned bits, int fraction, int bias, bool has_infinity) {
  const int exponents = 1 << (7 - fraction), exponent = static_cast<int>(bits >> fraction) & (exponents - 1),
            rest = static_cast<int>(bits) & ((1 << fraction) - 1);
  double magnitude = exponent == 0 ? std::ldexp(rest, 1 - bias - fraction) : std::ldexp((1 << fraction) + rest, exponent - bias - fraction);
  if (exponent == exponents - 1 && (has_infinity || rest == (1 << fraction) - 1))
    magnitude = has_infinity && rest == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  return bits & 0x80u ? -magnitude : magnitude;
}

template <class F>
struct Definition;
template <>
struct Definition<e4m3> {
  static double value(unsigned bits) { return value_of_float8(bits, 3, 7, false); }
  static constexpr unsigned largest = 0x7e;
};
template <>
struct Definition<e5m2> {
  static double value(unsigned bits) { return value_of_float8(bits, 2, 15, true); }
  static constexpr unsigned largest = 0x7b;
};

template <class F>
F float8_of(unsigned bits) {
  F f;
  f.bits = static_cast<std::uint8_t>(bits);
  return f;
}

/// The code whose value lies nearest in exact arithmetic; of two the even one; the largest for all beyond it.
template <class F>
std::uint8_t nearest_float8(float f) {
  const double magnitude = std::abs(static_cast<double>(f));
  unsigned found = 0;
  for (unsigned code = 1; code <= Definition<F>::largest; ++code) {
    const double before = std::abs(magnitude - Definition<F>::value(found)), now = std::abs(magnitude - Definition<F>::value(code));
    if (now < before || (now == before && code % 2 == 0)) found = code;
  }
  if (magnitude >= Definition<F>::value(Definition<F>::largest)) found = Definition<F>::largest;
  return static_cast<std::uint8_t>(found | (std::signbit(f) ? 0x80u : 0u));
}

template <class F>
class Float8Types : public testing::Test {};
using Float8s = testing::Types<e4m3, e5m2>;
TYPED_TEST_SUITE(Float8Types, Float8s);

TYPED_TEST(Float8Types, StandForTheValuesOfTheirDefinitionAndKeepThem) {
  for (unsigned bits = 0; bits < 256; ++bits) {
    const auto f = static_cast<float>(float8_of<TypeParam>(bits));
    const double wanted = Definition<TypeParam>::value(bits);
    if (std::isnan(wanted)) {
      ASSERT_TRUE(std::isnan(f)) << bits;
      EXPECT_EQ(TypeParam(f).bits, 0x7f) << "one NaN, without a sign";
    } else {
      ASSERT_EQ(static_cast<double>(f), wanted) << bits;
      ASSERT_EQ(std::signbit(f), std::signbit(wanted)) << bits;
      EXPECT_EQ(TypeParam(f).bits, std::isinf(wanted) ? (bits & 0x80u) | Definition<TypeParam>::largest : bits);
    }
  }
  EXPECT_EQ(TypeParam::largest(), Definition<TypeParam>::value(Definition<TypeParam>::largest));
}

TYPED_TEST(Float8Types, RoundEveryBf16ToTheNearest) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    bf16 b;
    b.bits = static_cast<std::uint16_t>(bits);
    const auto f = static_cast<float>(b);
    ASSERT_EQ(TypeParam(f).bits, std::isnan(f) ? TypeParam::nan : nearest_float8<TypeParam>(f)) << std::hexfloat << f;
  }
}

TYPED_TEST(Float8Types, RoundTiesToEvenAndTheirNeighboursTheOtherWay) {
  for (unsigned low = 0; low < Definition<TypeParam>::largest; ++low) {
    const double above = Definition<TypeParam>::value(low + 1);
    const auto tie = static_cast<float>((Definition<TypeParam>::value(low) + above) / 2);  // exact in fp32
    ASSERT_EQ(TypeParam(tie).bits, low + low % 2) << low;
    ASSERT_EQ(TypeParam(std::nextafter(tie, 0.f)).bits, low);
    ASSERT_EQ(TypeParam(-std::nextafter(tie, 1e9f)).bits, 0x80u | (low + 1));
  }
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    const float f = from_bits(random());
    if (!std::isnan(f)) {
      ASSERT_EQ(TypeParam(f).bits, nearest_float8<TypeParam>(f)) << std::hexfloat << f;
    }
  }
}

TEST(Types, SizesAndNames) {
  EXPECT_EQ(size_of(DType::f32), sizeof(float));
  EXPECT_EQ(size_of(DType::bf16), sizeof(bf16));
  EXPECT_EQ(size_of(DType::f16), sizeof(f16));
  EXPECT_EQ(size_of(DType::i64), 8u);
  EXPECT_EQ(size_of(DType::u16), 2u);
  EXPECT_EQ(size_of(DType::u32), 4u);
  EXPECT_EQ(size_of(DType::e4m3), sizeof(e4m3));
  EXPECT_EQ(size_of(DType::e5m2), sizeof(e5m2));
  EXPECT_EQ(name_of(dtype_of<float>()), "fp32");
  EXPECT_EQ(name_of(dtype_of<e4m3>()), "e4m3");
  EXPECT_EQ(name_of(dtype_of<e5m2>()), "e5m2");
  EXPECT_EQ(name_of(dtype_of<bf16>()), "bf16");
  EXPECT_EQ(name_of(dtype_of<f16>()), "fp16");
  EXPECT_EQ(name_of(dtype_of<std::int64_t>()), "int64");
  EXPECT_EQ(name_of(dtype_of<std::uint16_t>()), "uint16");
  EXPECT_EQ(name_of(dtype_of<std::uint32_t>()), "uint32");
}

TEST(Shape, ElementsAndText) {
  EXPECT_EQ(Shape{}.elements(), 1);
  EXPECT_EQ(Shape{}.str(), "scalar");
  EXPECT_EQ((Shape{3, 0, 5}).elements(), 0);
  EXPECT_EQ((Shape{4096, 1024}).str(), "4096 x 1024");
  EXPECT_EQ((Shape{1 << 20, 1 << 20}).elements(), std::int64_t{1} << 40);
  EXPECT_NE((Shape{6}), (Shape{2, 3}));
}

TEST(Types, DivisionUp) {
  EXPECT_EQ(ceil_div(0, 4), 0);
  EXPECT_EQ(ceil_div(1, 4), 1);
  EXPECT_EQ(ceil_div(8, 4), 2);
  EXPECT_EQ(round_up(513, 256), 768);
  EXPECT_EQ(round_up(512, 256), 512);
}

TEST(Human, Bytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(1.5 * (1 << 30)), "1.50 GiB");
  EXPECT_EQ(human_bytes(3 * 0x1p60), "3072.00 PiB");
}

TEST(Human, NoUnitIsShownAsAThousandOrMoreOfItself) {
  // 1023.999 KiB must not print as "1024.00 KiB", nor 999,999 as "1000.00 K".
  EXPECT_EQ(human_bytes(1048575), "1.00 MiB");
  EXPECT_EQ(human_bytes(1023.7), "1.00 KiB");
  EXPECT_EQ(human_count(999999), "1.00 M");
  EXPECT_EQ(human_count(999.7), "1.00 K");
}

TEST(Human, Counts) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(1000), "1.00 K");
  EXPECT_EQ(human_count(124.4e6), "124.40 M");
  EXPECT_EQ(human_count(70e9), "70.00 B");
  EXPECT_EQ(human_count(8.5e14), "850.00 T");
}

TEST(Check, AnErrorCarriesCodeAndText) {
  try {
    fail(ExitCode::data, "{} at {}", "bad token", 7);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ExitCode::data);
    EXPECT_STREQ(e.what(), "bad token at 7");
  }
}

TEST(Check, ABrokenInvariantNamesConditionFileAndLine) {
  try {
    TESSERA_REQUIRE(1 > 2, "with {}", 3);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ExitCode::internal);
    const std::string text = e.what();
    for (const char* part : {"types_test.cpp:", "1 > 2", "with 3"}) EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_NO_THROW(TESSERA_REQUIRE(true));
}

}  // namespace
}  // namespace tessera::types_test
