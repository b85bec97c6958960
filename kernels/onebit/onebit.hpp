// 1-bit Adam (Tang et al., arXiv:2102.02888) on flat shards, as DeepSpeed's OnebitAdam has it: Adam without bias correction while it warms
// up; then the mean of squares is frozen, and what ranks tell each other of their momenta are signs (kernels/signs).
#pragma once
#include "kernels/update/update.hpp"

namespace tessera::kernels {

/// m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2, g = grad * grad_scale; w -= lr (m / (sqrt(v) + eps) + weight_decay w). State: m, v.
TESSERA_OP(onebit_warmup, (const Context& context, const Update& arguments), (context, arguments))
/// m = b1 m + (1-b1) g. State: m.
TESSERA_OP(onebit_momentum, (const Context& context, const Update& arguments), (context, arguments))
/// w -= lr (m / (sqrt(v) + eps) + weight_decay w). State: m, v.
TESSERA_OP(onebit_frozen, (const Context& context, const Update& arguments), (context, arguments))

struct OnebitStep {
  float step, eps, weight_decay;

  TESSERA_BOTH OnebitStep(const UpdateScalars& s, const Update& p)
      : step(s.learning_rate * p.rate_scale), eps(s.eps), weight_decay(p.weight_decay) {}

  template <class F>
  TESSERA_BOTH TESSERA_INLINE void operator()(F& w, const F* state) const {
    using A = Arithmetic<F>;
    w = A::fma(-step, A::fma(weight_decay, w, state[0] / (A::sqrt(state[1]) + eps)), w);
  }
};

struct OnebitMomentumRule : UpdateRule {
  static constexpr int states = 1;
  static constexpr bool changes_master = false;
  float grad_scale, beta1, rest1;

  TESSERA_BOTH OnebitMomentumRule(const UpdateScalars& s, const Update&)
      : grad_scale(s.grad_scale), beta1(s.beta1), rest1(1.0f - s.beta1) {}

  template <class F>
  TESSERA_BOTH TESSERA_INLINE void operator()(F&, F* state, F g) const {
    state[0] = Arithmetic<F>::fma(beta1, state[0], rest1 * (g * grad_scale));
  }
};

struct OnebitWarmupRule : UpdateRule {
  static constexpr int states = 2;
  OnebitMomentumRule momentum;
  OnebitStep step;
  float beta2, rest2;

  TESSERA_BOTH OnebitWarmupRule(const UpdateScalars& s, const Update& p)
      : momentum(s, p), step(s, p), beta2(s.beta2), rest2(1.0f - s.beta2) {}

  template <class F>
  TESSERA_BOTH TESSERA_INLINE void operator()(F& w, F* state, F g) const {
    momentum(w, state, g);
    g = g * momentum.grad_scale;
    state[1] = Arithmetic<F>::fma(beta2, state[1], rest2 * g * g);
    step(w, state);
  }
};

struct OnebitFrozenRule : UpdateRule {
  static constexpr int states = 2;
  static constexpr bool reads_gradient = false, changes_state = false;
  OnebitStep step;

  TESSERA_BOTH OnebitFrozenRule(const UpdateScalars& s, const Update& p) : step(s, p) {}

  template <class F>
  TESSERA_BOTH TESSERA_INLINE void operator()(F& w, F* state, F) const {
    step(w, state);
  }
};

}  // namespace tessera::kernels
