// What the activations of a gate are made of beside an exponential, for one float or for sixteen lanes: the same bits on host and GPU.
#pragma once
#include <type_traits>

#include "kernels/arithmetic.hpp"
#include "kernels/swiglu/swiglu.hpp"

namespace tessera::kernels::gates {

/// Calls f with the activation as a constant.
template <class F>
void with_activation(GateActivation activation, F&& f) {
  using enum GateActivation;
  if (activation == gelu_tanh) return f(std::integral_constant<GateActivation, gelu_tanh>{});
  if (activation == gelu) return f(std::integral_constant<GateActivation, gelu>{});
  if (activation == clamped_silu) return f(std::integral_constant<GateActivation, clamped_silu>{});
  return f(std::integral_constant<GateActivation, silu>{});
}

/// gelu_tanh(g) = g sigmoid(v) with v = 2 sqrt(2 / pi) (g + 0.044715 g^3), and its derivative is s (1 + g v' (1 - s)), where s is that
/// sigmoid. Beyond 16 the sigmoid is 0 or 1 in fp32, with which an infinite v' would be NaN: `bounded` gates have a finite one. NaN stays
/// NaN.
inline constexpr float linear = 1.5957691216f, cubic = 0.0713548163f;
template <class F>
TESSERA_BOTH TESSERA_INLINE F bounded(F g) {
  using A = Arithmetic<F>;
  g = A::at_least(A::splat(-16.0f), g);
  return A::select(g > A::splat(16.0f), A::splat(16.0f), g);
}
/// v. It has the gate's sign.
template <class F>
TESSERA_BOTH TESSERA_INLINE F inner(F g) {
  using A = Arithmetic<F>;
  return g * A::fma(A::splat(cubic), g * g, A::splat(linear));
}
/// g v' of a bounded gate.
template <class F>
TESSERA_BOTH TESSERA_INLINE F inner_growth(F g) {
  using A = Arithmetic<F>;
  return g * A::fma(A::splat(3 * cubic), g * g, A::splat(linear));
}

/// gelu(g) = g P(g) with the normal distribution's P, and its derivative is P + g e^(-g^2 / 2) / sqrt(2 pi).
inline constexpr float density_at_zero = 0.3989422804f;
template <class F>
TESSERA_BOTH TESSERA_INLINE F half_square(F g) {
  return g * (g * 0.5f);
}
/// P(-|g|) e^(g^2 / 2) of r = 1 / (|g| + tail_shift): a minimax polynomial of degree 8 in (|g| - 2.5) / (|g| + 2.5), a fit of our own
/// up to |g| = 14, where the exponential is 0 (relative error 8.0e-8).
inline constexpr float tail_shift = 2.5f;
template <class F>
TESSERA_BOTH TESSERA_INLINE F tail(F r) {
  using A = Arithmetic<F>;
  const F w = A::fma(A::splat(-2 * tail_shift), r, A::splat(1.0f)), square = w * w;
  F even = A::fma(A::splat(-1.546913339e-04f), square, A::splat(8.002227206e-04f));
  F odd = A::fma(A::splat(-3.296670769e-04f), square, A::splat(2.941461833e-03f));
  even = A::fma(even, square, A::splat(-5.118023401e-03f)), odd = A::fma(odd, square, A::splat(-2.454798684e-02f));
  even = A::fma(even, square, A::splat(1.131351625e-01f)), odd = A::fma(odd, square, A::splat(-2.280698082e-01f));
  even = A::fma(even, square, A::splat(1.413313423e-01f));
  return A::fma(odd, w, even);
}
template <class F>
TESSERA_BOTH TESSERA_INLINE F magnitude(F x) {
  using A = Arithmetic<F>;
  return A::template bits<F>(A::template bits<typename A::Unsigned>(x) & 0x7fffffffu);
}

/// clamped_silu(g) = g s with s = sigmoid(v), v = clamped_slope g of a gate that is not above the limit; its derivative is
/// s (1 + v (1 - s)). Below -64 the sigmoid is 0 in fp32, with which an infinite v would be NaN: so v is bounded there.
inline constexpr float clamped_slope = 1.702f;
template <class F>
TESSERA_BOTH TESSERA_INLINE F clamped_growth(F g) {
  using A = Arithmetic<F>;
  return A::at_least(A::splat(-64.0f), g) * clamped_slope;
}
/// What the activation and its factor are made of: clamped_silu has the gate and up within their bounds, and 1 more than that; others have
/// them as they are.
template <GateActivation activation, class F>
TESSERA_BOTH TESSERA_INLINE void limit_operands(F& gate, F& up, float limit) {
  using A = Arithmetic<F>;
  if constexpr (activation == GateActivation::clamped_silu) {
    gate = A::select(gate > A::splat(limit), A::splat(limit), gate);
    up = A::at_least(A::splat(-limit), up);
    up = A::select(up > A::splat(limit), A::splat(limit), up) + 1.0f;
  }
}
/// Gradients of a gate and an up beyond their bounds become 0.
template <GateActivation activation, class F>
TESSERA_BOTH TESSERA_INLINE void limit_gradients(F& d_gate, F& d_up, F gate, F up, float limit) {
  using A = Arithmetic<F>;
  if constexpr (activation == GateActivation::clamped_silu) {
    d_gate = A::select(A::splat(limit) >= gate, d_gate, A::splat(0.0f));
    d_up = A::select(A::splat(limit) >= magnitude(up), d_up, A::splat(0.0f));
  }
}

}  // namespace tessera::kernels::gates
