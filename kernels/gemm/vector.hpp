// Sixteen fp32 lanes as a GCC vector: one AVX-512 register, two AVX ones, or whatever the target has. The host kernels that bound the speed
// of a step are written on it, so that the same source is right everywhere and fast where the hardware is wide.
#pragma once
#include <cstring>

#include "base/types.hpp"
#if defined(__AVX512BW__) && defined(__AVX512VL__)
#include <immintrin.h>
#endif

namespace tessera::kernels {

inline constexpr std::int64_t lane_count = 16;
using Lanes = float __attribute__((vector_size(64)));
using IntLanes = std::int32_t __attribute__((vector_size(64)));
using BitLanes = std::uint32_t __attribute__((vector_size(64)));
using ShortLanes = std::uint16_t __attribute__((vector_size(32)));

// x - 0 is x for every x, which the compiler knows; x + 0 is not (x = -0) and would cost an addition.
inline Lanes broadcast(float x) { return x - Lanes{}; }

inline Lanes load(const float* p) {
  Lanes v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, Lanes v) { std::memcpy(p, &v, sizeof v); }

inline Lanes load(const bf16* p) {
  ShortLanes s;
  std::memcpy(&s, p, sizeof s);
  return (Lanes)(__builtin_convertvector(s, BitLanes) << 16);
}

/// Rounds to nearest even exactly as bf16(float) does, NaN included.
inline void store(bf16* p, Lanes v) {
  BitLanes u = (BitLanes)v, rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
  BitLanes bits = v == v ? rounded : quiet;
  ShortLanes s = __builtin_convertvector(bits, ShortLanes);
  std::memcpy(static_cast<void*>(p), &s, sizeof s);
}

/// The first n < 16 lanes; the others are zero.
template <class T>
Lanes load_first(const T* p, std::int64_t n) {
  T buffer[lane_count] = {};
  std::memcpy(static_cast<void*>(buffer), p, static_cast<std::size_t>(n) * sizeof(T));
  return load(buffer);
}
template <class T>
void store_first(T* p, Lanes v, std::int64_t n) {
  T buffer[lane_count];
  store(buffer, v);
  std::memcpy(static_cast<void*>(p), buffer, static_cast<std::size_t>(n) * sizeof(T));
}
#if defined(__AVX512BW__) && defined(__AVX512VL__)
// A copy of unknown length is slow; these have masks.
inline __mmask16 first_lanes(std::int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
template <>
inline Lanes load_first(const float* p, std::int64_t n) {
  return (Lanes)_mm512_maskz_loadu_ps(first_lanes(n), p);
}
template <>
inline Lanes load_first(const bf16* p, std::int64_t n) {
  return (Lanes)(__builtin_convertvector((ShortLanes)_mm256_maskz_loadu_epi16(first_lanes(n), p), BitLanes) << 16);
}
template <>
inline void store_first(float* p, Lanes v, std::int64_t n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), (__m512)v);
}
template <>
inline void store_first(bf16* p, Lanes v, std::int64_t n) {
  bf16 buffer[lane_count];
  store(buffer, v);
  __m256i whole;
  std::memcpy(&whole, buffer, sizeof whole);
  _mm256_mask_storeu_epi16(p, first_lanes(n), whole);
}
#endif

inline Lanes max(Lanes a, Lanes b) { return a > b ? a : b; }

/// Sums in a fixed order (a tree), so that the result does not depend on how the compiler reduces.
inline float sum(Lanes v) {
  float x[lane_count];
  store(x, v);
  for (int half = lane_count / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x[i] += x[i + half];
  return x[0];
}
inline float maximum(Lanes v) {
  float x[lane_count];
  store(x, v);
  for (int half = lane_count / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
  return x[0];
}

/// 2^(x * factor) for x * factor <= 0, within 2e-7 relative; below -126 it stays at 2^-126. NaN stays NaN. With factor = log2(e) this is
/// e^x. Cody-Waite reduction to a remainder in [-1/2, 1/2], then a minimax polynomial of degree 5, written out so that nothing is loaded.
inline Lanes exp2_nonpositive(Lanes x, float factor = 1) {
  constexpr float to_integer = 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  Lanes lowest = broadcast(-126.f / factor);
  x = lowest > x ? lowest : x;
  Lanes shifted = x * factor + to_integer;
  Lanes r = x * factor - (shifted - to_integer);
  Lanes p = r * 1.339086336e-03f + 9.676031918e-03f;
  p = p * r + 5.550357114e-02f;
  p = p * r + 2.402210749e-01f;
  p = p * r + 6.931471880e-01f;
  p = p * r + 1.000000075e+00f;
  return (Lanes)((BitLanes)p + ((BitLanes)shifted << 23));
}

}  // namespace tessera::kernels
