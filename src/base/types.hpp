// Element types and shapes: the words that every layer shares.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Functions that host code and device code share.
#ifdef __CUDACC__
#define TESSERA_BOTH __host__ __device__
#else
#define TESSERA_BOTH
#endif

namespace tessera {

enum class DType : std::uint8_t { f32, bf16, f16, i64, u16, u32, e4m3, e5m2 };

/// What a type of elements is called, and by whom. Libraries' own words stand where those are spoken.
struct TypeRow {
  DType type;
  std::string_view name;  ///< of decks and reports
  std::size_t bytes;
  std::string_view torch, safetensors;  ///< of models; empty where none holds such elements, or with scales beside them
};
inline constexpr std::array<TypeRow, 8> type_rows{{{DType::f32, "fp32", 4, "float32", "F32"},
                                                   {DType::bf16, "bf16", 2, "bfloat16", "BF16"},
                                                   {DType::f16, "fp16", 2, "float16", "F16"},
                                                   {DType::i64, "int64", 8, "", ""},
                                                   {DType::u16, "uint16", 2, "", ""},
                                                   {DType::u32, "uint32", 4, "", ""},
                                                   {DType::e4m3, "e4m3", 1, "", ""},
                                                   {DType::e5m2, "e5m2", 1, "", ""}}};
constexpr const TypeRow& row_of(DType type) { return type_rows[static_cast<std::size_t>(type)]; }
static_assert(std::ranges::all_of(type_rows, [](const TypeRow& row) { return row_of(row.type).name == row.name; }));

/// Bytes of one element.
constexpr std::size_t size_of(DType type) { return row_of(type).bytes; }
/// "fp32", "bf16", "int64", ...: the words of decks and reports.
constexpr std::string_view name_of(DType type) { return row_of(type).name; }
/// Whether models hold such elements, and kernels compute with them. Those of 8 bits mean nothing without their scale.
constexpr bool is_float(DType type) { return !row_of(type).torch.empty(); }
/// f32, bf16 or f16 of its name; none of others.
std::optional<DType> float_type_of(std::string_view name);

/// bfloat16: the upper half of an fp32, rounded to nearest even. NaN stays NaN.
struct bf16 {
  std::uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float f) {
    std::uint32_t u = std::bit_cast<std::uint32_t>(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<std::uint16_t>((u >> 16) | 0x40u);
    } else {
      bits = static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
  friend bool operator==(bf16, bf16) = default;
};

/// IEEE's half: 11 bits of precision from 2^-14 to 65504 and fewer down to 2^-24; beyond 65520 a value becomes infinite. Rounded to nearest
/// even, with the bits of F16C. NaN stays NaN.
struct f16 {
  std::uint16_t bits = 0;
  f16() = default;
  explicit f16(float f) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(f), sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
    std::uint32_t half = 0;
    if (magnitude > 0x7f800000u)
      half = 0x7e00u | (magnitude >> 13 & 0x3ffu);
    else if (magnitude >= 0x477ff000u)  // 65520, the tie between the largest value and what would follow
      half = 0x7c00u;
    else if (magnitude >= 0x38800000u)  // 2^-14
      half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    else  // in a sum with 0.5 the last bit stands for 2^-24, as it does in a subnormal half
      half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    bits = static_cast<std::uint16_t>(sign | half);
  }
  explicit operator float() const {
    const std::uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    std::uint32_t wide = (magnitude << 13) + 0x38000000u;
    if (magnitude < 0x400u) wide = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
    if (magnitude >= 0x7c00u) wide += 0x38000000u;
    if (magnitude > 0x7c00u) wide |= 0x400000u;
    return std::bit_cast<float>(sign | wide);
  }
  friend bool operator==(f16, f16) = default;
};

/// Floats of 8 bits (Micikevicius et al., arXiv:2209.05433), rounded to nearest even: `fraction` bits after the point and exponents from
/// 1 - bias. What lies beyond the largest value becomes that value, as do infinities: conversions saturate. NaN is `nan`, without a sign.
template <int fraction, int bias, std::uint8_t largest_code>
struct Float8 {
  static constexpr std::uint8_t nan = 0x7f, largest_bits = largest_code;
  std::uint8_t bits = 0;
  Float8() = default;
  explicit constexpr Float8(float f) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(f), magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
      bits = nan;
      return;
    }
    std::uint32_t code = 0;
    if (magnitude >= smallest_normal)
      code = (magnitude - rebias + (1u << (shift - 1)) - 1u + (magnitude >> shift & 1u)) >> shift;
    else  // in a sum with this the last bit stands for the smallest subnormal
      code = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + subnormal_tie) - std::bit_cast<std::uint32_t>(subnormal_tie);
    bits = static_cast<std::uint8_t>((u >> 24 & 0x80u) | std::min<std::uint32_t>(code, largest_bits));
  }
  explicit constexpr operator float() const {
    const std::uint32_t sign = (bits & 0x80u) << 24, magnitude = bits & 0x7fu;
    std::uint32_t wide = (magnitude << shift) + rebias;
    if (magnitude < 1u << fraction) wide = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * smallest);
    if (magnitude > largest_bits) wide = largest_bits + 1u < nan && magnitude == largest_bits + 1u ? 0x7f800000u : 0x7fc00000u;
    return std::bit_cast<float>(sign | wide);
  }
  static constexpr float largest() {
    Float8 x;
    x.bits = largest_bits;
    return static_cast<float>(x);
  }
  friend bool operator==(Float8, Float8) = default;

  // Of conversions in vectors, which are the same arithmetic.
  static constexpr int shift = 23 - fraction;
  static constexpr std::uint32_t rebias = (127u - bias) << 23, smallest_normal = (128u - bias) << 23;
  static constexpr float smallest = std::bit_cast<float>((128u - bias - fraction) << 23);  // subnormal
  static constexpr float subnormal_tie = std::bit_cast<float>((128u - bias - fraction + 23u) << 23);
};
/// 2^-9 to 448, without infinities.
using e4m3 = Float8<3, 7, 0x7e>;
/// 2^-16 to 57344; infinities are read, and never written.
using e5m2 = Float8<2, 15, 0x7b>;

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<f16>() {
  return DType::f16;
}
template <>
constexpr DType dtype_of<e4m3>() {
  return DType::e4m3;
}
template <>
constexpr DType dtype_of<e5m2>() {
  return DType::e5m2;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<std::uint16_t>() {
  return DType::u16;
}
template <>
constexpr DType dtype_of<std::uint32_t>() {
  return DType::u32;
}

/// A tensor's extents, outermost first.
struct Shape {
  std::vector<std::int64_t> dims;
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> d) : dims(d) {}
  explicit Shape(std::vector<std::int64_t> d) : dims(std::move(d)) {}
  /// Product of the dims; 1 for a scalar.
  std::int64_t elements() const;
  /// "4096 x 1024"
  std::string str() const;
  friend bool operator==(const Shape&, const Shape&) = default;
};

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

/// "1.50 GiB": bytes for people.
std::string human_bytes(double bytes);
/// "124.4 M": counts for people.
std::string human_count(double count);

/// Elements [begin, end).
struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

}  // namespace tessera
