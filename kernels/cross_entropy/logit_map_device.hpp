// A mapped logit on a GPU, by the hardware's exponential and quotient, as the softmax's terms are.
#pragma once
#include "kernels/cross_entropy/logit_map.hpp"
#include "kernels/cuda/device.hpp"

namespace tessera::kernels::logit_map {

__device__ inline Mapped<float> mapped_on_device(float x, const Constants& map) {
  if (map.cap == 0) return {x * map.scale, map.scale};
  const float z = x * map.per_cap, e = __expf(exponent(z));
  const Mapped<float> tanh = tanh_of_parts(z, e, __fdividef(1.0f, e + 1.0f));
  return {tanh.value * map.cap, tanh.slope * map.scale};
}

}  // namespace tessera::kernels::logit_map
