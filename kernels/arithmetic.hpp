// The words in which code for one float and for sixteen lanes is the same code: Arithmetic<float> here, for host and device, and
// Arithmetic<f32x16> in vector.hpp. A function written in them has the same bits on both.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/types.hpp"

#define TESSERA_INLINE inline __attribute__((always_inline))

namespace tessera::kernels {

template <class F>
struct Arithmetic;

template <>
struct Arithmetic<float> {
  using Int = std::int32_t;
  using Unsigned = std::uint32_t;
  TESSERA_BOTH static float splat(float x) { return x; }
  /// a b + c, rounded once.
  TESSERA_BOTH static float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
  TESSERA_BOTH static float sqrt(float x) { return ::sqrtf(x); }
  /// NaN stays NaN.
  TESSERA_BOTH static float clamp(float x, float low, float high) {
    x = high < x ? high : x;
    return x < low ? low : x;
  }
  TESSERA_BOTH static float to_float(Int x) { return static_cast<float>(x); }
  TESSERA_BOTH static float to_float(Unsigned x) { return static_cast<float>(x); }
  /// 2^n * p for p near 1 and whole n in [-152, 130], rounded once where the result is subnormal.
  TESSERA_BOTH static float scale_by_power(float p, float n) {
    const Int e = n == n ? static_cast<Int>(n) : 0, half = e >> 1;
    return p * std::bit_cast<float>((half + 127) << 23) * std::bit_cast<float>((e - half + 127) << 23);
  }
};

}  // namespace tessera::kernels
