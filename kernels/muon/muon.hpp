// Muon (Jordan et al.; Liu et al., arXiv:2502.16982): a matrix goes against the orthogonal factor of its momentum, which
// kernels/newton_schulz makes between these two.
#pragma once
#include "kernels/update/update.hpp"

namespace tessera::kernels {

/// m += (1-b) (g - m), g = grad * grad_scale and b = momentum. What is orthogonalised goes to where Update::param is, bf16: m, or where it
/// looks ahead (Nesterov) g + b (m - g). State: m. With scalars->skip the weights are there.
TESSERA_OP(muon_momentum, (const Context& context, const Update& arguments), (context, arguments))
TESSERA_OP(muon_nesterov, (const Context& context, const Update& arguments), (context, arguments))
/// w *= 1 - lr weight_decay; w -= lr grad, which is the scaled orthogonal factor.
TESSERA_OP(muon, (const Context& context, const Update& arguments), (context, arguments))

template <bool nesterov>
struct MuonMomentumRule : UpdateRule {
  static constexpr int states = 1;
  static constexpr bool changes_master = false;
  float grad_scale, rest;

  TESSERA_BOTH MuonMomentumRule(const UpdateScalars& s, const Update&) : grad_scale(s.grad_scale), rest(1.0f - s.momentum) {}

  /// What takes the weight's place is written to the copy alone.
  template <class F>
  TESSERA_BOTH TESSERA_INLINE void operator()(F& w, F* state, F g) const {
    using A = Arithmetic<F>;
    g = g * grad_scale;
    const F m = state[0] = A::fma(rest, g - state[0], state[0]);
    w = nesterov ? A::fma(rest, g - m, m) : m;
  }
};

struct MuonRule : UpdateRule {
  static constexpr int states = 0;
  float step, keep;

  TESSERA_BOTH MuonRule(const UpdateScalars& s, const Update& p)
      : step(s.learning_rate * p.rate_scale),
        keep(static_cast<float>(1.0 - static_cast<double>(step) * static_cast<double>(p.weight_decay))) {}

  template <class F>
  TESSERA_BOTH TESSERA_INLINE void operator()(F& w, F*, F g) const {
    w = Arithmetic<F>::fma(w, keep, g * -step);
  }
};

}  // namespace tessera::kernels
