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
  /// The larger; x where x is NaN.
  TESSERA_BOTH static float at_least(float low, float x) { return low > x ? low : x; }
  TESSERA_BOTH static float select(bool mask, float a, float b) { return mask ? a : b; }
  TESSERA_BOTH static float to_float(Int x) { return static_cast<float>(x); }
  TESSERA_BOTH static float to_float(Unsigned x) { return static_cast<float>(x); }
  template <class To, class From>
  TESSERA_BOTH static To bits(From x) {
    return std::bit_cast<To>(x);
  }
};

/// Both words of a product of 32-bit words.
template <class Word>
struct WideProduct {
  Word high, low;
};
TESSERA_BOTH TESSERA_INLINE WideProduct<std::uint32_t> multiply_wide(std::uint32_t a, std::uint32_t b) {
  std::uint64_t product = std::uint64_t{a} * b;
  return {static_cast<std::uint32_t>(product >> 32), static_cast<std::uint32_t>(product)};
}

}  // namespace tessera::kernels
