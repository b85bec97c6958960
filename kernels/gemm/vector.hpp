// Sixteen fp32 lanes as a GCC vector: one AVX-512 register, two AVX ones, or whatever the target has. The host kernels that bound the speed
// of a step are written on it, so that the same source is right everywhere and fast where the hardware is wide.
#pragma once
#include <cstring>

#include "base/types.hpp"

namespace tessera::kernels {

inline constexpr std::int64_t lane_count = 16;
using Lanes = float __attribute__((vector_size(64)));
using IntLanes = std::int32_t __attribute__((vector_size(64)));
using ShortLanes = std::uint16_t __attribute__((vector_size(32)));

inline Lanes broadcast(float x) { return Lanes{} + x; }

inline Lanes load(const float* p) {
  Lanes v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, Lanes v) { std::memcpy(p, &v, sizeof v); }

inline Lanes load(const bf16* p) {
  ShortLanes s;
  std::memcpy(&s, p, sizeof s);
  return (Lanes)(__builtin_convertvector(s, IntLanes) << 16);
}

/// Rounds to nearest even exactly as bf16(float) does, NaN included.
inline void store(bf16* p, Lanes v) {
  using Bits = std::uint32_t __attribute__((vector_size(64)));
  Bits u = (Bits)v, rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
  Bits bits = v == v ? rounded : quiet;
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

/// e^x, within 2 units in the last place; 0 below -87, where fp32 would turn subnormal, and never infinite: inputs stop at 88.
/// Cody-Waite reduction to |r| <= ln2 / 2, then the Taylor terms up to r^7.
inline Lanes exp(Lanes x) {
  constexpr float log2_e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f, to_integer = 12582912.f;  // 1.5 * 2^23
  Lanes lowest = broadcast(-87.f), highest = broadcast(88.f);
  Lanes clamped = x < lowest ? lowest : x;
  clamped = clamped > highest ? highest : clamped;
  Lanes shifted = clamped * log2_e + to_integer;
  Lanes n = shifted - to_integer;
  Lanes r = clamped - n * ln2_high - n * ln2_low;
  Lanes p = broadcast(1.f / 5040);
  for (float c : {1.f / 720, 1.f / 120, 1.f / 24, 1.f / 6, 0.5f, 1.f, 1.f}) p = p * r + c;
  IntLanes power = ((IntLanes)shifted - (IntLanes)broadcast(to_integer) + 127) << 23;
  Lanes y = p * (Lanes)power;
  return x < lowest ? Lanes{} : y;
}

}  // namespace tessera::kernels
