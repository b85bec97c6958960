// Element types and shapes: the words that every layer shares.
#pragma once
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

enum class DType : std::uint8_t { f32, bf16, i64, u16, u32 };

/// Bytes of one element.
std::size_t size_of(DType);
/// "fp32", "bf16", "int64", ...: the words of decks and reports.
std::string_view name_of(DType);
/// f32 or bf16 of its name; none of others.
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
