// The activations that are no gate's, for one float and for sixteen lanes: the same bits on host and GPU.
#pragma once
#include <type_traits>

#include "kernels/activation/activation.hpp"
#include "kernels/exp.hpp"

namespace tessera::kernels::activations {

/// Calls f with the activation as a constant.
template <class F>
void with_plain_activation(PlainActivation activation, F&& f) {
  using enum PlainActivation;
  if (activation == gelu_tanh) return f(std::integral_constant<PlainActivation, gelu_tanh>{});
  if (activation == relu_squared) return f(std::integral_constant<PlainActivation, relu_squared>{});
  if (activation == xielu) return f(std::integral_constant<PlainActivation, xielu>{});
  return f(std::integral_constant<PlainActivation, gelu>{});
}

/// xIELU's factors a_p and a_n.
struct Factors {
  float positive = 0, negative = 0;
};
inline constexpr float beta = 0.5f, nearest_to_zero = -1e-6f;
TESSERA_BOTH inline float factor_of(float alpha, bool positive) { return softplus(alpha) + (positive ? 0.0f : beta); }

/// xIELU of x. `less_one` is e^min(x, -1e-6) - 1, and `exponential`, that less x, is the derivative by a_n where x is not above 0.
template <class F>
struct Xielu {
  F x, less_one, exponential;
  TESSERA_BOTH TESSERA_INLINE explicit Xielu(const F& x) : x(x) {
    using A = Arithmetic<F>;
    const F least = A::select(x > A::splat(nearest_to_zero), A::splat(nearest_to_zero), x);
    less_one = exp2_less_one<F>(least * 1.442695041f);
    exponential = less_one - x;
  }
  TESSERA_BOTH TESSERA_INLINE F value(const Factors& a) const {
    using A = Arithmetic<F>;
    const F above = x * A::fma(A::splat(a.positive), x, A::splat(beta)), below = A::fma(A::splat(a.negative), exponential, x * beta);
    return A::select(x > A::splat(0.0f), above, below);
  }
  /// Where e^x is cut off, the exponential has no part in it.
  TESSERA_BOTH TESSERA_INLINE F slope(const Factors& a) const {
    using A = Arithmetic<F>;
    const F above = A::fma(A::splat(a.positive + a.positive), x, A::splat(beta));
    const F growth = A::select(x > A::splat(nearest_to_zero), A::splat(-1.0f), less_one);
    return A::select(x > A::splat(0.0f), above, A::fma(A::splat(a.negative), growth, A::splat(beta)));
  }
  /// sum + d times the derivative by a_p, and by a_n.
  TESSERA_BOTH TESSERA_INLINE F add_positive(const F& d, const F& sum) const {
    using A = Arithmetic<F>;
    return A::fma(d, A::select(x > A::splat(0.0f), x * x, A::splat(0.0f)), sum);
  }
  TESSERA_BOTH TESSERA_INLINE F add_negative(const F& d, const F& sum) const {
    using A = Arithmetic<F>;
    return A::fma(d, A::select(x > A::splat(0.0f), A::splat(0.0f), exponential), sum);
  }
};

template <class F>
TESSERA_BOTH TESSERA_INLINE F rectified(const F& x) {
  return Arithmetic<F>::at_least(Arithmetic<F>::splat(0.0f), x);
}

}  // namespace tessera::kernels::activations
