// Adam (Kingma and Ba, arXiv:1412.6980) with the weight decay of L2 regularisation, as torch.optim.Adam has it: part of the gradient.
#pragma once
#include "kernels/adamw/adamw.hpp"

namespace tessera::kernels {

/// As adamw without decay, of the gradient g = grad * grad_scale + weight_decay * w. State: m, v.
TESSERA_OP(adam, (const Context& context, const Update& arguments), (context, arguments))

struct AdamRule : UpdateRule {
  static constexpr int states = AdamwRule::states;
  AdamwRule rule;
  float grad_scale, weight_decay;

  TESSERA_BOTH AdamRule(const UpdateScalars& s, const Update& p) : rule(s, p), grad_scale(s.grad_scale), weight_decay(p.weight_decay) {
    rule.grad_scale = 1, rule.keep = 1;
  }

  template <class F>
  TESSERA_BOTH TESSERA_INLINE void operator()(F& w, F* state, F g) const {
    rule(w, state, Arithmetic<F>::fma(weight_decay, w, g * grad_scale));
  }
};

}  // namespace tessera::kernels
