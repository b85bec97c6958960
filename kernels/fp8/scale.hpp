// The scale of elements in fp8, of their largest magnitude: the same code on hosts and on GPUs.
#pragma once
#include <bit>

#include "kernels/fp8/fp8.hpp"

namespace tessera::kernels {

struct Fp8Scale {
  float multiplier;  ///< of elements, before they are rounded to codes
  float scale;       ///< of codes
};

/// `largest`: value of the type. A magnitude that is not finite gives NaN.
TESSERA_BOTH inline Fp8Scale fp8_scale(float magnitude, float largest, bool power_of_two) {
  if (std::bit_cast<std::uint32_t>(magnitude) >= 0x7f800000u) {
    const float nan = std::bit_cast<float>(0x7fc00000u);
    return {nan, nan};
  }
  const double of = static_cast<double>(magnitude) < fp8_least_magnitude ? fp8_least_magnitude : static_cast<double>(magnitude);
  if (!power_of_two) {
    const auto multiplier = static_cast<float>(static_cast<double>(largest) / of);
    return {multiplier, 1.f / multiplier};
  }
  // The least e with largest x 2^e at least as much: that of their exponents, or the next where the fraction is beyond. No rounding of `of`
  // crosses a power of two, and no scale comes near subnormal numbers.
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(of)), most = std::bit_cast<std::uint32_t>(largest);
  const std::uint32_t e = (bits >> 23) - (most >> 23) + ((bits & 0x7fffffu) > (most & 0x7fffffu) ? 1u : 0u);
  return {std::bit_cast<float>((127u - e) << 23), std::bit_cast<float>((127u + e) << 23)};
}

inline constexpr bool is_blocks(Fp8Scaling scaling) { return scaling == Fp8Scaling::row_blocks || scaling == Fp8Scaling::square_blocks; }

}  // namespace tessera::kernels
