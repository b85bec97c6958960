// What hosts and GPUs have in common, to the bit.
#pragma once
#include "kernels/fp8/scale.hpp"
#include "kernels/fp8_history/fp8_history.hpp"

namespace tessera::kernels::fp8_history {

/// Of history `i`, of which `magnitude` is the largest.
TESSERA_BOTH inline float multiplier_of(const Fp8Histories& p, std::int64_t i, float magnitude) {
  if (magnitude == 0) return 1;
  const bool gradient = i / p.matrices == static_cast<std::int64_t>(Fp8Tensor::gradient);
  const float multiplier = fp8_scale(magnitude, gradient ? e5m2::largest() : e4m3::largest(), false).multiplier;
  return multiplier * std::bit_cast<float>(static_cast<std::uint32_t>(127 - p.margin) << 23);
}

}  // namespace tessera::kernels::fp8_history
