// Sixteen floats at a time, from fp32 or bf16 memory: what every memory-bound host kernel is written in. AVX-512 where the target has it,
// else GCC's generic vectors; both give the same bits. Multiply-adds are written as fma, so that no compiler may choose to fuse or not, and
// a remainder of n elements runs the very expression of the whole vectors, on masked loads and stores.
#pragma once
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/check.hpp"
#include "base/types.hpp"
#include "kernels/arithmetic.hpp"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && !defined(TESSERA_GENERIC_VECTORS)
#define TESSERA_AVX512 1
// GCC 12 and 13 warn inside their own header about its deliberately undefined operands (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
// Vectors wider than the target's registers are passed in memory; every function here is inlined, so no interface depends on it.
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

namespace tessera::kernels {

inline constexpr int lanes = 16;
typedef float f32x16 __attribute__((vector_size(64)));          // NOLINT: attributes need typedef
typedef std::int32_t i32x16 __attribute__((vector_size(64)));   // NOLINT
typedef std::uint32_t u32x16 __attribute__((vector_size(64)));  // NOLINT
typedef std::uint16_t u16x16 __attribute__((vector_size(32)));  // NOLINT

/// The element count of a whole vector, known to the compiler; a remainder passes an int.
using Whole = std::integral_constant<int, lanes>;
template <class Count>
inline constexpr bool is_whole = std::is_same_v<Count, Whole>;

TESSERA_INLINE f32x16 splat(float x) { return x - f32x16{}; }

TESSERA_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#ifdef TESSERA_AVX512
  return _mm512_fmadd_ps(a, b, c);
#else
  f32x16 r;
  for (int i = 0; i < lanes; ++i) r[i] = std::fma(a[i], b[i], c[i]);
  return r;
#endif
}

/// NaN stays NaN.
TESSERA_INLINE f32x16 clamp(f32x16 x, float low, float high) {
#ifdef TESSERA_AVX512
  return _mm512_max_ps(_mm512_set1_ps(low), _mm512_min_ps(_mm512_set1_ps(high), x));  // both return the second operand for NaN
#else
  x = high < x ? splat(high) : x;
  return x < low ? splat(low) : x;
#endif
}

TESSERA_INLINE f32x16 sqrt(f32x16 a) {
#ifdef TESSERA_AVX512
  return _mm512_sqrt_ps(a);
#else
  f32x16 r;
  for (int i = 0; i < lanes; ++i) r[i] = std::sqrt(a[i]);
  return r;
#endif
}

template <>
struct Arithmetic<f32x16> {
  using Int = i32x16;
  using Unsigned = u32x16;
  TESSERA_INLINE static f32x16 splat(float x) { return kernels::splat(x); }
  TESSERA_INLINE static f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return kernels::fma(a, b, c); }
  TESSERA_INLINE static f32x16 sqrt(f32x16 x) { return kernels::sqrt(x); }
  TESSERA_INLINE static f32x16 clamp(f32x16 x, float low, float high) { return kernels::clamp(x, low, high); }
  TESSERA_INLINE static f32x16 to_float(Int x) { return __builtin_convertvector(x, f32x16); }
  TESSERA_INLINE static f32x16 to_float(Unsigned x) { return __builtin_convertvector(x, f32x16); }
  TESSERA_INLINE static f32x16 scale_by_power(f32x16 p, f32x16 n) {
#ifdef TESSERA_AVX512
    return _mm512_scalef_ps(p, n);
#else
    i32x16 e = __builtin_convertvector(n, i32x16), half = e >> 1;
    return p * std::bit_cast<f32x16>((half + 127) << 23) * std::bit_cast<f32x16>((e - half + 127) << 23);
#endif
  }
};

/// Sum of the lanes as a tree: halves are added until one lane is left.
TESSERA_INLINE float horizontal_sum(f32x16 a) {
#ifdef TESSERA_AVX512
  return _mm512_reduce_add_ps(a);
#else
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a[i] += a[i + width];
  }
  return a[0];
#endif
}

#ifdef TESSERA_AVX512
TESSERA_INLINE __mmask16 first_lanes(int count) { return static_cast<__mmask16>((1u << count) - 1u); }
#endif

/// `count` elements from memory as fp32; lanes beyond are 0.
template <class Count>
TESSERA_INLINE f32x16 load(const float* p, Count count) {
#ifdef TESSERA_AVX512
  if constexpr (is_whole<Count>) return _mm512_loadu_ps(p);
  return _mm512_maskz_loadu_ps(first_lanes(count), p);
#else
  f32x16 r{};
  std::memcpy(&r, p, count * sizeof(float));
  return r;
#endif
}
template <class Count>
TESSERA_INLINE f32x16 load(const bf16* p, Count count) {
#ifdef TESSERA_AVX512
  __m256i half;
  if constexpr (is_whole<Count>) {
    half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  } else {
    half = _mm256_maskz_loadu_epi16(first_lanes(count), p);
  }
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
#else
  u16x16 half{};
  std::memcpy(&half, p, count * sizeof(bf16));
  return std::bit_cast<f32x16>(__builtin_convertvector(half, u32x16) << 16);
#endif
}

/// Whole numbers as fp32, each rounded once.
template <class Count>
TESSERA_INLINE f32x16 load(const std::int64_t* p, Count count) {
  std::int64_t part[lanes] = {};
  if constexpr (!is_whole<Count>) {
    std::memcpy(part, p, static_cast<std::size_t>(count) * sizeof(std::int64_t));
    p = part;
  }
#ifdef TESSERA_AVX512
  __m256 low = _mm512_cvtepi64_ps(_mm512_loadu_si512(p)), high = _mm512_cvtepi64_ps(_mm512_loadu_si512(p + 8));
  return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
#else
  f32x16 r;
  for (int i = 0; i < lanes; ++i) r[i] = static_cast<float>(p[i]);
  return r;
#endif
}

/// bf16(float) of each lane, with the same bits on every target. VCVTNEPS2BF16 has them too, save that it flushes subnormals: those are so
/// rare that a branch to the integer form costs less than running it always.
TESSERA_INLINE u16x16 to_bf16(f32x16 x) {
#ifdef TESSERA_AVX512
#ifdef __AVX512BF16__
  constexpr int subnormal = 0x20;
  if (__builtin_expect(_mm512_fpclass_ps_mask(x, subnormal) == 0, 1)) return std::bit_cast<u16x16>(_mm512_cvtneps_pbh(x));
#endif
  __m512i u = _mm512_castps_si512(x);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
  rounded = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
  return std::bit_cast<u16x16>(_mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
#else
  u32x16 u = std::bit_cast<u32x16>(x);
  u32x16 rounded = u + 0x7fffu + ((u >> 16) & 1u);
  rounded = (u & 0x7fffffffu) > 0x7f800000u ? (u | 0x400000u) : rounded;
  return __builtin_convertvector(rounded >> 16, u16x16);
#endif
}

/// Writes the first `count` lanes. Stream = true writes around the caches: p must lie on a whole vector.
template <bool Stream = false, class Count>
TESSERA_INLINE void store(float* p, f32x16 x, Count count) {
#ifdef TESSERA_AVX512
  if constexpr (!is_whole<Count>) {
    _mm512_mask_storeu_ps(p, first_lanes(count), x);
  } else if constexpr (Stream) {
    _mm512_stream_ps(p, x);
  } else {
    _mm512_storeu_ps(p, x);
  }
#else
  std::memcpy(p, &x, count * sizeof(float));
#endif
}
template <bool Stream = false, class Count>
TESSERA_INLINE void store(bf16* p, f32x16 x, Count count) {
  u16x16 half = to_bf16(x);
#ifdef TESSERA_AVX512
  __m256i bits = std::bit_cast<__m256i>(half);
  if constexpr (!is_whole<Count>) {
    _mm256_mask_storeu_epi16(p, first_lanes(count), bits);
  } else if constexpr (Stream) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), bits);
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits);
  }
#else
  std::memcpy(static_cast<void*>(p), &half, count * sizeof(bf16));
#endif
}

/// Asks for the line of p. One a vector: rows that follow each other are asked for a row ahead, which keeps memory busy while this row is
/// being computed, and across the pages at which the hardware's own prefetch stops.
TESSERA_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

/// Streaming stores are weakly ordered: a piece that used them ends with this.
TESSERA_INLINE void stream_fence() {
#ifdef TESSERA_AVX512
  _mm_sfence();
#endif
}

/// Whether an output is so large that it leaves the caches before anyone reads it, and lies so that whole vectors are aligned in every
/// row: then streaming stores save the read of each line that a plain store begins with.
inline bool worth_streaming(const void* out, std::int64_t total_bytes, std::int64_t row_bytes) {
#ifdef TESSERA_AVX512
  constexpr std::int64_t beyond_caches = 32 << 20;
  return total_bytes >= beyond_caches && row_bytes % 64 == 0 && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
#else
  static_cast<void>(out), static_cast<void>(total_bytes), static_cast<void>(row_bytes);
  return false;
#endif
}

/// f(i, count) for begin, begin + 16, ... below end: whole vectors, then the remainder.
template <class F>
TESSERA_INLINE void for_vectors(std::int64_t begin, std::int64_t end, F&& f) {
  std::int64_t i = begin;
  for (; i + lanes <= end; i += lanes) f(i, Whole{});
  if (i < end) f(i, static_cast<int>(end - i));
}

/// Sum over [0, n) in a fixed order: f(i, count, sum) adds the terms at i to the vector sum. Four chains hide the latency of the additions.
template <class F>
TESSERA_INLINE float fold(std::int64_t n, F&& f) {
  f32x16 a{}, b{}, c{}, d{};
  std::int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    f(i, Whole{}, a);
    f(i + lanes, Whole{}, b);
    f(i + 2 * lanes, Whole{}, c);
    f(i + 3 * lanes, Whole{}, d);
  }
  for_vectors(i, n, [&](std::int64_t j, auto count) { f(j, count, a); });
  return horizontal_sum((a + b) + (c + d));
}

/// Calls f with a float or a bf16 value: the element type that dtype names.
template <class F>
void with_float_type(DType dtype, const char* op, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bf16{});
    default:
      fail(ExitCode::internal, "{}: the host kernel takes fp32 or bf16, not {}", op, name_of(dtype));
  }
}

}  // namespace tessera::kernels
