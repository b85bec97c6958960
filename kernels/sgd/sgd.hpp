// Stochastic gradient descent as torch.optim.SGD has it: with the weight decay of L2 regularisation, and with momentum (Polyak), which may
// look ahead (Nesterov; Sutskever et al., ICML 2013).
#pragma once
#include "kernels/update/update.hpp"

namespace tessera::kernels {

/// w -= lr g, g = grad * grad_scale + weight_decay * w.
TESSERA_OP(sgd, (const Context& context, const Update& arguments), (context, arguments))
/// m = momentum * m + g; w -= lr m. State: m.
TESSERA_OP(sgd_momentum, (const Context& context, const Update& arguments), (context, arguments))
/// m = momentum * m + g; w -= lr (g + momentum * m). State: m.
TESSERA_OP(sgd_nesterov, (const Context& context, const Update& arguments), (context, arguments))

enum class SgdKind { plain, momentum, nesterov };

template <SgdKind kind>
struct SgdRule : UpdateRule {
  static constexpr int states = kind == SgdKind::plain ? 0 : 1;
  float grad_scale, momentum, step, weight_decay;

  TESSERA_BOTH SgdRule(const UpdateScalars& s, const Update& p)
      : grad_scale(s.grad_scale), momentum(s.momentum), step(s.learning_rate * p.rate_scale), weight_decay(p.weight_decay) {}

  template <class F>
  TESSERA_BOTH TESSERA_INLINE void operator()(F& w, F* state, F g) const {
    using A = Arithmetic<F>;
    g = A::fma(weight_decay, w, g * grad_scale);
    if constexpr (kind != SgdKind::plain) {
      const F m = state[0] = A::fma(momentum, state[0], g);
      g = kind == SgdKind::nesterov ? A::fma(momentum, m, g) : m;
    }
    w = A::fma(-step, g, w);
  }
};

}  // namespace tessera::kernels
