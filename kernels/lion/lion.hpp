// Lion (Chen et al., arXiv:2302.06675) on flat shards: the sign of a mean of gradients is the step.
#pragma once
#include "kernels/update/update.hpp"

namespace tessera::kernels {

/// w *= 1 - lr weight_decay; w -= lr sign(b1 m + (1-b1) g); m = b2 m + (1-b2) g; g = grad * grad_scale, and the sign of 0 is 0. State: m.
TESSERA_OP(lion, (const Context& context, const Update& arguments), (context, arguments))

struct LionRule : UpdateRule {
  static constexpr int states = 1;
  float grad_scale, beta1, rest1, beta2, rest2, step, keep;

  TESSERA_BOTH LionRule(const UpdateScalars& s, const Update& p)
      : grad_scale(s.grad_scale),
        beta1(s.beta1),
        rest1(1.0f - s.beta1),
        beta2(s.beta2),
        rest2(1.0f - s.beta2),
        step(s.learning_rate * p.rate_scale),
        keep(static_cast<float>(1.0 - static_cast<double>(step) * static_cast<double>(p.weight_decay))) {}

  template <class F>
  TESSERA_BOTH TESSERA_INLINE void operator()(F& w, F* state, F g) const {
    using A = Arithmetic<F>;
    g = g * grad_scale;
    const F mean = A::fma(beta1, state[0], rest1 * g), down = A::splat(-step), up = A::splat(step);
    state[0] = A::fma(beta2, state[0], rest2 * g);
    w = A::fma(w, keep, A::select(mean > 0.0f, down, A::select(mean < 0.0f, up, A::splat(0.0f))));
  }
};

}  // namespace tessera::kernels
