// AdamW (Loshchilov and Hutter, arXiv:1711.05101) on flat shards: master weight, both moments and the compute copy in one pass over memory.
#pragma once
#include "kernels/update/update.hpp"

namespace tessera::kernels {

/// m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; w -= lr * ((m/bc1) / (sqrt(v/bc2) + eps) + weight_decay * w), g = grad * grad_scale.
/// PyTorch's order: the decay multiplies w by (1 - lr * weight_decay) first. State: m, v.
TESSERA_OP(adamw, (const Context& context, const Update& arguments), (context, arguments))

struct AdamwRule : UpdateRule {
  static constexpr int states = 2;
  float grad_scale, beta1, rest1, beta2, rest2, step, root_scale, eps, keep;

  TESSERA_BOTH AdamwRule(const UpdateScalars& s, const Update& p)
      : grad_scale(s.grad_scale),
        beta1(s.beta1),
        rest1(1.0f - s.beta1),
        beta2(s.beta2),
        rest2(1.0f - s.beta2),
        step(s.learning_rate * p.rate_scale / s.bias_correction1),
        root_scale(static_cast<float>(1.0 / ::sqrt(static_cast<double>(s.bias_correction2)))),
        eps(s.eps),
        keep(static_cast<float>(1.0 - static_cast<double>(s.learning_rate * p.rate_scale) * static_cast<double>(p.weight_decay))) {}

  template <class F>
  TESSERA_BOTH TESSERA_INLINE void operator()(F& w, F* state, F g) const {
    using A = Arithmetic<F>;
    g = g * grad_scale;
    const F m = state[0] = A::fma(beta1, state[0], rest1 * g);
    const F v = state[1] = A::fma(beta2, state[1], rest2 * g * g);
    w = A::fma(w, keep, -(m * step / A::fma(A::sqrt(v), root_scale, eps)));
  }
};

}  // namespace tessera::kernels
