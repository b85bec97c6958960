// Vectors to and from memory, in fp32, bf16, f16 and int64: whole ones, and remainders of `count` elements.
#pragma once
#include "kernels/vector/arithmetic.hpp"

namespace tessera::kernels {

/// The element count of a whole vector, known to the compiler; a remainder passes an int.
using Whole = std::integral_constant<int, lanes>;
template <class Count>
inline constexpr bool is_whole = std::is_same_v<Count, Whole>;

#if defined(TESSERA_AVX512)
TESSERA_INLINE __mmask16 first_lanes(std::int64_t count) { return static_cast<__mmask16>((1u << count) - 1u); }
#elif defined(TESSERA_AVX2)
alignas(64) inline constexpr std::int32_t lane_switches[2 * lanes] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
/// Part k of the mask of the first `count` lanes.
TESSERA_INLINE __m256i first_lanes(std::int64_t count, int k) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lane_switches + lanes - count + 8 * k));
}
#endif

/// `count` elements from memory as fp32; lanes beyond are 0.
template <class Count = Whole>
TESSERA_INLINE f32x16 load(const float* p, Count count = {}) {
  f32x16 r;
#if defined(TESSERA_AVX512)
  r.part[0] = is_whole<Count> ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(first_lanes(count), p);
#else
  if constexpr (is_whole<Count>) {
    // A register at a time: GCC would copy 64 bytes in pieces of its own choice, through the stack.
    unrolled<parts>([&](auto k) __attribute__((always_inline)) { std::memcpy(&r.part[k], p + k * f32x16::part_size, sizeof r.part[k]); });
  } else {
#ifdef TESSERA_AVX2
    unrolled<parts>([&](auto k) __attribute__((always_inline)) { r.part[k] = _mm256_maskload_ps(p + 8 * k, first_lanes(count, k)); });
#else
    r = {};
    std::memcpy(&r, p, static_cast<std::size_t>(count) * sizeof(float));
#endif
  }
#endif
  return r;
}
template <class Count = Whole>
TESSERA_INLINE f32x16 load(const bf16* p, Count count = {}) {
#ifdef TESSERA_AVX512
  __m256i half;
  if constexpr (is_whole<Count>) {
    half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  } else {
    half = _mm256_maskz_loadu_epi16(first_lanes(count), p);
  }
  f32x16 r;
  r.part[0] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  return r;
#else
  bf16 part[lanes];
  if constexpr (!is_whole<Count>) {
    std::memset(static_cast<void*>(part), 0, sizeof part);
    std::memcpy(static_cast<void*>(part), p, static_cast<std::size_t>(count) * sizeof(bf16));
    p = part;
  }
  f32x16 r;
  unrolled<parts>([&](auto k) __attribute__((always_inline)) {
#ifdef TESSERA_AVX2
    __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8 * k));
    r.part[k] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
#else
    for (int i = 0; i < f32x16::part_size; ++i) r.part[k][i] = static_cast<float>(p[k * f32x16::part_size + i]);
#endif
  });
  return r;
#endif
}

template <class Count = Whole>
TESSERA_INLINE f32x16 load(const f16* p, Count count = {}) {
  f32x16 r;
#ifdef TESSERA_AVX512
  __m256i half;
  if constexpr (is_whole<Count>) {
    half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  } else {
    half = _mm256_maskz_loadu_epi16(first_lanes(count), p);
  }
  r.part[0] = _mm512_cvtph_ps(half);
#else
  f16 part[lanes];
  if constexpr (!is_whole<Count>) {
    std::memset(static_cast<void*>(part), 0, sizeof part);
    std::memcpy(static_cast<void*>(part), p, static_cast<std::size_t>(count) * sizeof(f16));
    p = part;
  }
  unrolled<parts>([&](auto k) __attribute__((always_inline)) {
#ifdef TESSERA_AVX2
    r.part[k] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8 * k)));
#else
    for (int i = 0; i < f32x16::part_size; ++i) r.part[k][i] = static_cast<float>(p[k * f32x16::part_size + i]);
#endif
  });
#endif
  return r;
}

/// Eight whole numbers as fp64, each rounded once.
TESSERA_INLINE f64x8 to_f64(const std::int64_t* p) {
  f64x8 r;
#if defined(TESSERA_AVX512)
  r.part[0] = _mm512_cvtepi64_pd(_mm512_loadu_si512(p));
#elif defined(TESSERA_AVX2)
  // x + 1.5 * 2^52 as a double has x in its low bits, for |x| < 2^51.
  __m256i x[2], beyond = _mm256_setzero_si256();
  unrolled<2>([&](auto k) __attribute__((always_inline)) {
    x[k] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 4 * k));
    beyond = _mm256_or_si256(beyond, _mm256_add_epi64(x[k], _mm256_set1_epi64x(std::int64_t{1} << 51)));
  });
  if (__builtin_expect(_mm256_testz_si256(beyond, _mm256_set1_epi64x(-(std::int64_t{1} << 52))), 1)) {
    unrolled<2>([&](auto k) __attribute__((always_inline)) {
      __m256i shifted = _mm256_add_epi64(x[k], _mm256_castpd_si256(_mm256_set1_pd(0x1.8p52)));
      r.part[k] = _mm256_sub_pd(_mm256_castsi256_pd(shifted), _mm256_set1_pd(0x1.8p52));
    });
  } else {
    for (int i = 0; i < 8; ++i) r.part[i / 4][i % 4] = static_cast<double>(p[i]);
  }
#else
  for (int i = 0; i < 8; ++i) r.part[i / f64x8::part_size][i % f64x8::part_size] = static_cast<double>(p[i]);
#endif
  return r;
}
TESSERA_INLINE f64x8 to_f64(const float* p) {
  f64x8 r;
#if defined(TESSERA_AVX512)
  r.part[0] = _mm512_cvtps_pd(_mm256_loadu_ps(p));
#elif defined(TESSERA_AVX2)
  for (int k = 0; k < 2; ++k) r.part[k] = _mm256_cvtps_pd(_mm_loadu_ps(p + 4 * k));
#else
  for (int i = 0; i < 8; ++i) r.part[i / f64x8::part_size][i % f64x8::part_size] = static_cast<double>(p[i]);
#endif
  return r;
}
#if defined(TESSERA_AVX512) || defined(TESSERA_AVX2)
TESSERA_INLINE __m256 eight_floats(const bf16* p) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
TESSERA_INLINE __m256 eight_floats(const f16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
#endif
/// Of bf16 and f16.
template <class T>
requires(sizeof(T) == 2) TESSERA_INLINE f64x8 to_f64(const T* p) {
  f64x8 r;
#if defined(TESSERA_AVX512) || defined(TESSERA_AVX2)
  const __m256 x = eight_floats(p);
#ifdef TESSERA_AVX512
  r.part[0] = _mm512_cvtps_pd(x);
#else
  r.part[0] = _mm256_cvtps_pd(_mm256_castps256_ps128(x)), r.part[1] = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
#endif
#else
  for (int i = 0; i < 8; ++i) r.part[i / f64x8::part_size][i % f64x8::part_size] = static_cast<double>(static_cast<float>(p[i]));
#endif
  return r;
}

/// Whole numbers as fp32, each rounded once.
template <class Count = Whole>
TESSERA_INLINE f32x16 load(const std::int64_t* p, Count count = {}) {
  std::int64_t part[lanes] = {};
  if constexpr (!is_whole<Count>) {
    std::memcpy(part, p, static_cast<std::size_t>(count) * sizeof(std::int64_t));
    p = part;
  }
  f32x16 r;
#if defined(TESSERA_AVX512)
  __m256 low = _mm512_cvtepi64_ps(_mm512_loadu_si512(p)), high = _mm512_cvtepi64_ps(_mm512_loadu_si512(p + 8));
  r.part[0] = _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
#else
#if defined(TESSERA_AVX2)
  // Below 2^53 fp64 is exact, so the step to fp32 is the one that rounds.
  __m256i beyond = _mm256_setzero_si256();
  for (int k = 0; k < 4; ++k) {
    __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 4 * k));
    beyond = _mm256_or_si256(beyond, _mm256_add_epi64(x, _mm256_set1_epi64x(std::int64_t{1} << 51)));
  }
  if (__builtin_expect(_mm256_testz_si256(beyond, _mm256_set1_epi64x(-(std::int64_t{1} << 52))), 1)) {
    unrolled<2>([&](auto k) __attribute__((always_inline)) {
      f64x8 x = to_f64(p + 8 * k);
      r.part[k] = _mm256_set_m128(_mm256_cvtpd_ps(x.part[1]), _mm256_cvtpd_ps(x.part[0]));
    });
    return r;
  }
#endif
  for (int i = 0; i < lanes; ++i) r.part[i / f32x16::part_size][i % f32x16::part_size] = static_cast<float>(p[i]);
#endif
  return r;
}

/// fp32 to the upper halves of words, rounded to nearest even; NaN stays NaN.
TESSERA_INLINE u32x16 round_to_bf16(const f32x16& x) {
  u32x16 u = bits_as<u32x16>(x), rounded = u + 0x7fffu + ((u >> 16) & 1u);
#ifdef TESSERA_AVX2
  // One comparison finds a NaN of either part: so rare that a branch costs less than two selections.
  if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(x.part[0], x.part[1], _CMP_UNORD_Q)) == 0, 1)) return rounded;
#endif
  return select(x != x, u | 0x400000u, rounded);
}

#if defined(TESSERA_AVX512) || defined(TESSERA_AVX2)
/// Sixteen elements of two bytes.
template <bool Stream, class T, class Count>
TESSERA_INLINE void store_bits(T* p, __m256i bits, Count count) {
  if constexpr (!is_whole<Count>) {
#ifdef TESSERA_AVX512
    _mm256_mask_storeu_epi16(p, first_lanes(count), bits);
#else
    std::memcpy(static_cast<void*>(p), &bits, static_cast<std::size_t>(count) * sizeof(T));
#endif
  } else if constexpr (Stream) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), bits);
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits);
  }
}
#endif

/// Stores bf16(float), or f16(float), of each of the first `count` lanes, with the same bits on every target. Stream = true writes around
/// the caches: p must lie on a whole vector.
template <bool Stream = false, class Count = Whole>
TESSERA_INLINE void store(bf16* p, const f32x16& x, Count count = {}) {
#if defined(TESSERA_AVX512)
  __m256i bits;
#ifdef __AVX512BF16__
  // VCVTNEPS2BF16 flushes subnormals: those are so rare that a branch to the integer form costs less than running it always.
  constexpr int subnormal = 0x20;
  if (__builtin_expect(_mm512_fpclass_ps_mask(x.part[0], subnormal) == 0, 1)) {
    bits = std::bit_cast<__m256i>(_mm512_cvtneps_pbh(x.part[0]));
  } else
#endif
    bits = _mm512_cvtepi32_epi16(std::bit_cast<__m512i>(round_to_bf16(x) >> 16));
  store_bits<Stream>(p, bits, count);
#elif defined(TESSERA_AVX2)
  u32x16 rounded = round_to_bf16(x) >> 16;
  __m256i packed = _mm256_packus_epi32(std::bit_cast<__m256i>(rounded.part[0]), std::bit_cast<__m256i>(rounded.part[1]));
  store_bits<Stream>(p, _mm256_permute4x64_epi64(packed, 0xd8), count);
#else
  for (int i = 0; i < count; ++i) p[i] = bf16(x[i]);
#endif
}
template <bool Stream = false, class Count = Whole>
TESSERA_INLINE void store(f16* p, const f32x16& x, Count count = {}) {
  constexpr int nearest = 0x08;  // to even, without exceptions
#if defined(TESSERA_AVX512)
  store_bits<Stream>(p, _mm512_cvtps_ph(x.part[0], nearest), count);
#elif defined(TESSERA_AVX2)
  store_bits<Stream>(p, _mm256_set_m128i(_mm256_cvtps_ph(x.part[1], nearest), _mm256_cvtps_ph(x.part[0], nearest)), count);
#else
  static_cast<void>(nearest);
  for (int i = 0; i < count; ++i) p[i] = f16(x[i]);
#endif
}
template <bool Stream = false, class Count = Whole>
TESSERA_INLINE void store(float* p, const f32x16& x, Count count = {}) {
#if defined(TESSERA_AVX512)
  if constexpr (!is_whole<Count>) {
    _mm512_mask_storeu_ps(p, first_lanes(count), x.part[0]);
  } else if constexpr (Stream) {
    _mm512_stream_ps(p, x.part[0]);
  } else {
    _mm512_storeu_ps(p, x.part[0]);
  }
#elif defined(TESSERA_AVX2)
  unrolled<parts>([&](auto k) __attribute__((always_inline)) {
    if constexpr (!is_whole<Count>) {
      _mm256_maskstore_ps(p + 8 * k, first_lanes(count, k), x.part[k]);
    } else if constexpr (Stream) {
      _mm256_stream_ps(p + 8 * k, x.part[k]);
    } else {
      _mm256_storeu_ps(p + 8 * k, x.part[k]);
    }
  });
#else
  if constexpr (is_whole<Count>) {
    unrolled<parts>([&](auto k) { std::memcpy(p + k * f32x16::part_size, &x.part[k], sizeof x.part[k]); });
  } else {
    std::memcpy(p, &x, static_cast<std::size_t>(count) * sizeof(float));
  }
#endif
}

// Work that is the same for each lane need not keep lanes in order. On AVX2 taking bf16 apart in order costs the shuffle units more than
// the work itself, while even elements are one shift away from fp32 and odd ones one mask. So load_any and store_any hold T in an order of
// their own, in which all operands of one T agree, and in_order brings a vector of them, such as a sum, into the order of memory.

/// `count` elements in the order of T; lanes of elements beyond are 0. fp32 and f16 keep memory's.
template <class T, class Count = Whole>
TESSERA_INLINE f32x16 load_any(const T* p, Count count = {}) {
  return load(p, count);
}
template <class Count = Whole>
TESSERA_INLINE f32x16 load_any(const bf16* p, Count count = {}) {
#ifdef TESSERA_AVX2
  __m256i pairs;
  if constexpr (is_whole<Count>) {
    pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  } else {
    pairs = _mm256_setzero_si256();
    std::memcpy(&pairs, p, static_cast<std::size_t>(count) * sizeof(bf16));
  }
  f32x16 r;
  r.part[0] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
  r.part[1] = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  return r;
#else
  return load(p, count);
#endif
}

/// The order of memory from that of T.
template <class T>
TESSERA_INLINE f32x16 in_order(const f32x16& x) {
#ifdef TESSERA_AVX2
  if constexpr (std::is_same_v<T, bf16>) {
    __m256 low = _mm256_unpacklo_ps(x.part[0], x.part[1]), high = _mm256_unpackhi_ps(x.part[0], x.part[1]);
    f32x16 r;
    r.part[0] = _mm256_permute2f128_ps(low, high, 0x20);
    r.part[1] = _mm256_permute2f128_ps(low, high, 0x31);
    return r;
  }
#endif
  return x;
}

/// Writes the first `count` elements of a vector in the order of T.
template <bool Stream = false, class T, class Count = Whole>
TESSERA_INLINE void store_any(T* p, const f32x16& x, Count count = {}) {
  store<Stream>(p, x, count);
}
template <bool Stream = false, class Count = Whole>
TESSERA_INLINE void store_any(bf16* p, const f32x16& x, Count count = {}) {
#ifdef TESSERA_AVX2
  u32x16 rounded = round_to_bf16(x);
  __m256i even = _mm256_srli_epi32(std::bit_cast<__m256i>(rounded.part[0]), 16);
  store_bits<Stream>(p, _mm256_blend_epi16(even, std::bit_cast<__m256i>(rounded.part[1]), 0xaa), count);
#else
  store<Stream>(p, x, count);
#endif
}

/// Asks for the line of p. One a vector: rows that follow each other are asked for a row ahead, which keeps memory busy while this row is
/// being computed, and across the pages at which the hardware's own prefetch stops.
TESSERA_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

/// Streaming stores are weakly ordered: a piece that used them ends with this.
TESSERA_INLINE void stream_fence() {
#if defined(TESSERA_AVX512) || defined(TESSERA_AVX2)
  _mm_sfence();
#endif
}

/// Whether an output is so large that it leaves the caches before anyone reads it, and lies so that whole vectors are aligned in every
/// row: then streaming stores save the read of each line that a plain store begins with.
inline bool worth_streaming(const void* out, std::int64_t total_bytes, std::int64_t row_bytes) {
#if defined(TESSERA_AVX512) || defined(TESSERA_AVX2)
  constexpr std::int64_t beyond_caches = 32 << 20;
  return total_bytes >= beyond_caches && row_bytes % 64 == 0 && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
#else
  static_cast<void>(out), static_cast<void>(total_bytes), static_cast<void>(row_bytes);
  return false;
#endif
}

}  // namespace tessera::kernels
