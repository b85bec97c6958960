// AdamW (Loshchilov and Hutter, arXiv:1711.05101) on flat shards: master weight, both moments and the compute copy in one pass over memory.
#pragma once
#include "kernels/context.hpp"
#include "kernels/update/scalars.hpp"

namespace tessera::kernels {

/// m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; w -= lr * ((m/bc1) / (sqrt(v/bc2) + eps) + weight_decay * w), g = grad * grad_scale.
/// PyTorch's order: the decay multiplies w by (1 - lr * weight_decay) first. n may be any number; elements are independent and their bits
/// do not depend on where in the range they lie.
struct Adamw {
  float* master = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  void* param = nullptr;            ///< copy to write, or null when the master is the compute copy
  DType param_dtype = DType::bf16;  ///< of the copy: bf16 or f16
  const void* grad = nullptr;       ///< fp32, bf16, or fixed-point int64 (value * 2^-44)
  DType grad_dtype = DType::f32;
  std::int64_t n = 0;
  float rate_scale = 1;  ///< of the learning rate
  float weight_decay = 0;
  const UpdateScalars* scalars = nullptr;
};
TESSERA_OP(adamw, (const Context& context, const Adamw& arguments), (context, arguments))

}  // namespace tessera::kernels
