// LAMB (You et al., arXiv:1904.00962) on flat shards, as DeepSpeed's FusedLamb has it: AdamW's direction, of a length that is in
// proportion to the tensor's own. Two passes, between which the tensor's norms become those of all its elements.
#pragma once
#include "kernels/update/update.hpp"

namespace tessera::kernels {

/// m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2, g = grad * grad_scale; the sums get w^2 and u^2, u = m / (sqrt(v) + eps) + weight_decay w.
/// State: m, v. Sums: |w|^2, |u|^2.
TESSERA_OP(lamb_moments, (const Context& context, const Update& arguments), (context, arguments))
/// w -= lr sqrt(bc2) / bc1 * trust * u: trust is |w| / |u| inside [least_trust, most_trust], and 1 where a norm is 0.
TESSERA_OP(lamb, (const Context& context, const Update& arguments), (context, arguments))

struct LambDirection {
  float eps, weight_decay;

  TESSERA_BOTH LambDirection(const UpdateScalars& s, const Update& p) : eps(s.eps), weight_decay(p.weight_decay) {}

  template <class F>
  TESSERA_BOTH TESSERA_INLINE F operator()(F w, const F* state) const {
    using A = Arithmetic<F>;
    return A::fma(weight_decay, w, state[0] / (A::sqrt(state[1]) + eps));
  }
};

struct LambMomentsRule : UpdateRule {
  static constexpr int states = 2, sums = 2;
  static constexpr bool changes_master = false;
  LambDirection direction;
  float grad_scale, beta1, rest1, beta2, rest2;

  TESSERA_BOTH LambMomentsRule(const UpdateScalars& s, const Update& p)
      : direction(s, p), grad_scale(s.grad_scale), beta1(s.beta1), rest1(1.0f - s.beta1), beta2(s.beta2), rest2(1.0f - s.beta2) {}

  template <class F>
  TESSERA_BOTH TESSERA_INLINE void operator()(F& w, F* state, F g, F* summed) const {
    using A = Arithmetic<F>;
    g = g * grad_scale;
    state[0] = A::fma(beta1, state[0], rest1 * g);
    state[1] = A::fma(beta2, state[1], rest2 * g * g);
    summed[0] = w;
    summed[1] = direction(w, state);
  }
};

struct LambRule : UpdateRule {
  static constexpr int states = 2;
  static constexpr bool reads_gradient = false, changes_state = false, reads_sums = true;
  LambDirection direction;
  float step;

  TESSERA_BOTH LambRule(const UpdateScalars& s, const Update& p) : direction(s, p) {
    const double w = ::sqrt(p.sums[0].value()), u = ::sqrt(p.sums[1].value());
    const double bounded = ::fmin(::fmax(w / u, static_cast<double>(s.least_trust)), static_cast<double>(s.most_trust));
    const double rate = static_cast<double>(s.learning_rate * p.rate_scale) * ::sqrt(static_cast<double>(s.bias_correction2)) /
                        static_cast<double>(s.bias_correction1);
    step = static_cast<float>(rate * (w > 0 && u > 0 ? bounded : 1));
  }

  template <class F>
  TESSERA_BOTH TESSERA_INLINE void operator()(F& w, F* state, F) const {
    w = Arithmetic<F>::fma(-step, direction(w, state), w);
  }
};

}  // namespace tessera::kernels
