// A block's scale, and codes of one value: the same on host and device.
#pragma once
#include "kernels/arithmetic.hpp"
#include "kernels/quantize/quantize.hpp"

namespace tessera::kernels {

/// x + this, as bits, is the whole number nearest to x, ties to even, above these bits: for |x| < 2^22.
inline constexpr float code_shift = 0x1.8p23f;
inline constexpr std::uint32_t code_shift_bits = 0x4b400000u;

struct BlockScale {
  float scale;    ///< of a code
  float inverse;  ///< what values are multiplied by
};
/// Of a block whose largest magnitude has these bits. As whole numbers they are in the order of magnitudes, with NaN above all.
TESSERA_BOTH inline BlockScale block_scale(std::uint32_t magnitude, int largest) {
  if (magnitude >= 0x7f800000u) return {std::bit_cast<float>(0x7fc00000u), 0};
  if (magnitude < 0x0d800000u) return {0, 0};  // 2^-100
  const float most = std::bit_cast<float>(magnitude), codes = static_cast<float>(largest);
  return {most / codes, codes / most};
}

/// The same of a block of errors: of what is not finite nothing is kept.
TESSERA_BOTH inline BlockScale error_scale(std::uint32_t magnitude) {
  return magnitude >= 0x7f800000u ? BlockScale{0, 0} : block_scale(magnitude, largest_code(Wire::int8_blocks));
}

/// What turns codes of an error into values beside x: the scale of x's loss, or zero where the error begins anew.
TESSERA_BOTH inline float error_factor(const EncodeWithError& p) {
  if (p.updates && *p.updates % p.interval == 0) return 0;
  return p.loss_scale ? *p.loss_scale : 1.0f;
}

}  // namespace tessera::kernels
