// What is the same of signs on host and device.
#pragma once
#include <cmath>

#include "kernels/signs/signs.hpp"

namespace tessera::kernels {

/// Of n numbers whose squares have this sum.
TESSERA_BOTH inline float sign_scale(const FixedSum& sum, std::int64_t n) {
  return n == 0 ? 0.0f : static_cast<float>(::sqrt(sum.value() / static_cast<double>(n)));
}

}  // namespace tessera::kernels
