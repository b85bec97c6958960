// The activations of a gate on the host.
#pragma once
#include "kernels/exp.hpp"
#include "kernels/swiglu/gates.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::gates {

/// e^-|g| in [0, 1], from which the sigmoids of g and -g come without a difference; what would be subnormal is 0.
TESSERA_INLINE f32x16 exp_of_minus_abs(f32x16 g) {
  f32x16 x = bits_as<f32x16>(bits_as<u32x16>(g) | 0x80000000u);
  return select(x >= splat(lowest_exponent), exp_nonpositive_in_range(x), f32x16{});
}

/// silu(g), where e = e^-|g|.
TESSERA_INLINE f32x16 silu(f32x16 g, f32x16 e) { return select_by_sign(g, g * e, g) / (e + 1.0f); }

/// P(g), where e = e^(-g^2 / 2).
TESSERA_INLINE f32x16 normal_below(f32x16 g, f32x16 e) {
  const f32x16 tail_of_e = e * tail(1.0f / (magnitude(g) + tail_shift));
  return select_by_sign(g, tail_of_e, 1.0f - tail_of_e);
}

/// The exponential that a gate's activation is made of, and the activation.
template <GateActivation activation>
TESSERA_INLINE f32x16 exponential_of_gate(f32x16 g) {
  if constexpr (activation == GateActivation::gelu_tanh) return exp_of_minus_abs(inner(g));
  if constexpr (activation == GateActivation::gelu) return exp_of_minus_abs(half_square(g));
  if constexpr (activation == GateActivation::clamped_silu) return exp_of_minus_abs(g * clamped_slope);
  return exp_of_minus_abs(g);
}
template <GateActivation activation>
TESSERA_INLINE f32x16 activated(f32x16 g, f32x16 e) {
  if constexpr (activation == GateActivation::gelu) return g * normal_below(g, e);
  return silu(g, e);  // v has the sign of g
}

/// s = sigmoid(v) and 1 - s = sigmoid(-v), where v is g, or what gelu_tanh has for it.
struct Sigmoids {
  f32x16 of, complement;
};
TESSERA_INLINE Sigmoids sigmoids(f32x16 g, f32x16 e) {
  const f32x16 larger = 1.0f / (e + 1.0f), smaller = e * larger;
  return {select_by_sign(g, smaller, larger), select_by_sign(g, larger, smaller)};
}
/// 1 + g v' (1 - s), by which s becomes the derivative.
template <GateActivation activation>
TESSERA_INLINE f32x16 growth(f32x16 g, f32x16 complement) {
  if constexpr (activation == GateActivation::gelu_tanh) g = inner_growth(bounded(g));
  if constexpr (activation == GateActivation::clamped_silu) g = clamped_growth(g);
  return fma(g, complement, splat(1.0f));
}

}  // namespace tessera::kernels::gates
