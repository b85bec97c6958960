// Vectors of floats of 8 bits: base/types.hpp has the conversions one by one, and these give the same bits.
#pragma once
#include "kernels/vector/vector.hpp"

namespace tessera::kernels {

/// The low byte of each of the first `count` lanes, and bytes as lanes; lanes beyond are 0.
template <class Count = Whole>
TESSERA_INLINE void store_bytes(std::uint8_t* to, const i32x16& x, Count count = {}) {
#ifdef TESSERA_AVX512
  const __m128i bytes = _mm512_cvtepi32_epi8(std::bit_cast<__m512i>(x.part[0]));
#else
  typedef std::uint8_t Bytes __attribute__((vector_size(i32x16::part_size)));  // NOLINT: attributes need typedef
  std::uint8_t bytes[lanes];
  unrolled<parts>([&](auto k) __attribute__((always_inline)) {
    const auto part = __builtin_convertvector(x.part[k], Bytes);
    std::memcpy(bytes + k * i32x16::part_size, &part, sizeof part);
  });
#endif
  if constexpr (is_whole<Count>)
    std::memcpy(to, &bytes, lanes);
  else
    std::memcpy(to, &bytes, static_cast<std::size_t>(count));
}
template <class Count = Whole>
TESSERA_INLINE i32x16 load_bytes(const std::uint8_t* from, Count count = {}) {
  std::uint8_t part[lanes] = {};
  if constexpr (!is_whole<Count>) {
    std::memcpy(part, from, static_cast<std::size_t>(count));
    from = part;
  }
  i32x16 x;
#ifdef TESSERA_AVX512
  x.part[0] = std::bit_cast<i32x16::Part>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
  typedef std::uint8_t Bytes __attribute__((vector_size(i32x16::part_size)));  // NOLINT: attributes need typedef
  unrolled<parts>([&](auto k) __attribute__((always_inline)) {
    Bytes bytes;
    std::memcpy(&bytes, from + k * i32x16::part_size, sizeof bytes);
    x.part[k] = __builtin_convertvector(bytes, i32x16::Part);
  });
#endif
  return x;
}

/// The codes in F, a Float8, of values of which none is NaN or rounds to more than the largest, as lanes.
template <class F>
TESSERA_INLINE i32x16 round_to_float8(const f32x16& x) {
  const i32x16 bits = bits_as<i32x16>(x), magnitude = bits & 0x7fffffff;
  constexpr std::int32_t half = (1 << (F::shift - 1)) - 1, rebias = static_cast<std::int32_t>(F::rebias);
  const i32x16 normal = (magnitude + (half - rebias) + ((magnitude >> F::shift) & 1)) >> F::shift;
  const i32x16 subnormal =
      bits_as<i32x16>(bits_as<f32x16>(magnitude) + splat(F::subnormal_tie)) - std::bit_cast<std::int32_t>(F::subnormal_tie);
  const i32x16 code = select(magnitude >= i32x16(static_cast<std::int32_t>(F::smallest_normal)), normal, subnormal);
  return code | ((bits >> 24) & 0x80);
}

/// `count` elements from memory as fp32; lanes beyond are 0.
template <int fraction, int bias, std::uint8_t largest, class Count = Whole>
TESSERA_INLINE f32x16 load(const Float8<fraction, bias, largest>* p, Count count = {}) {
  using F = Float8<fraction, bias, largest>;
  const i32x16 bits = load_bytes(&p->bits, count), magnitude = bits & 0x7f;
  // A subnormal's bits count the smallest.
  const f32x16 subnormal = convert<f32x16>(magnitude) * splat(F::smallest);
  i32x16 wide =
      select(magnitude < i32x16(1 << fraction), bits_as<i32x16>(subnormal), (magnitude << F::shift) + static_cast<std::int32_t>(F::rebias));
  i32x16 beyond(0x7fc00000);
  if constexpr (F::largest_bits + 1 < F::nan) beyond = select(magnitude > i32x16(F::largest_bits + 1), beyond, i32x16(0x7f800000));
  wide = select(magnitude > i32x16(F::largest_bits), beyond, wide) | ((bits & 0x80) << 24);
  return bits_as<f32x16>(wide);
}

/// Calls f with a value of the type of 8 bits that dtype names.
template <class F>
void with_float8_type(DType dtype, const char* op, F&& f) {
  if (dtype == DType::e4m3) return f(e4m3{});
  if (dtype == DType::e5m2) return f(e5m2{});
  fail(ExitCode::internal, "{}: codes are e4m3 or e5m2, not {}", op, name_of(dtype));
}

}  // namespace tessera::kernels
