// Codes of fp8 in kernels: in code for capability 8.9 or newer by its instruction, elsewhere by the integer arithmetic of base/types.hpp.
// Both round to nearest even and saturate, so the bits are the same.
#pragma once
#include <type_traits>

#include "base/backend.hpp"
#include "kernels/cuda/device.hpp"

namespace tessera::cuda {

/// Of two values, the first in the lower byte.
template <class F>
__device__ inline std::uint16_t fp8_codes(float first, float second) {
#ifdef TESSERA_EMULATED_GPU
  constexpr int fraction = std::is_same_v<F, e4m3> ? 3 : 2, least_exponent = std::is_same_v<F, e4m3> ? -6 : -14;
  const auto code = [](float x) { return emulator::fp8_code<fraction, least_exponent, F::largest_bits>(x); };
  return static_cast<std::uint16_t>(code(first) | code(second) << 8);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint16_t codes;
  if constexpr (std::is_same_v<F, e4m3>)
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  else
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  return codes;
#else
  return static_cast<std::uint16_t>(F(first).bits | F(second).bits << 8);
#endif
}

}  // namespace tessera::cuda
