// AdamW (Loshchilov and Hutter, arXiv:1711.05101) on flat shards: master weight, both moments and the compute copy in one pass over memory.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// The values of one step. They lie in memory that tasks write and read, so a step never branches on the host.
struct AdamwScalars {
  float learning_rate = 0, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float bias_correction1 = 1, bias_correction2 = 1;  ///< 1 - beta^step
  float grad_scale = 1;                              ///< clip factor, or 0 with `skip`
  std::int32_t skip = 0;                             ///< 1: leave everything as it is
};

/// m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; w -= lr * ((m/bc1) / (sqrt(v/bc2) + eps) + weight_decay * w), g = grad * grad_scale.
/// PyTorch's order: the decay multiplies w by (1 - lr * weight_decay) first. n may be any number; elements are independent and their bits
/// do not depend on where in the range they lie.
struct Adamw {
  float* master = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  void* param = nullptr;       ///< bf16 copy to write, or null when the master is the compute copy
  const void* grad = nullptr;  ///< fp32, bf16, or fixed-point int64 (value * 2^-44)
  DType grad_dtype = DType::f32;
  std::int64_t n = 0;
  float rate_scale = 1;  ///< of the learning rate
  float weight_decay = 0;
  const AdamwScalars* scalars = nullptr;
};
TESSERA_OP(adamw, (const Context& context, const Adamw& arguments), (context, arguments))

}  // namespace tessera::kernels
