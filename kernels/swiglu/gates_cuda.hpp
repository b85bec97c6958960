// The activations of a gate on a GPU. In fp32 the exponential and the division are the host's, and so are the bits; in 16 bits they are the
// hardware's approximations (2^-21 or so).
#pragma once
#include <cmath>

#include "kernels/cuda/device.hpp"
#include "kernels/exp.hpp"
#include "kernels/swiglu/gates.hpp"

namespace tessera::kernels::gates {

/// e^-|g| in [0, 1], from which the sigmoids of g and -g come without a difference; what would be subnormal is 0.
template <class T>
__device__ float exp_of_minus_abs(float g) {
  const float x = -fabsf(g);
  if (sizeof(T) != 4) return __expf(x);
  return x >= lowest_exponent ? exp_nonpositive_in_range(x) : 0.0f;
}
template <class T>
__device__ float quotient(float x, float y) {
  return sizeof(T) == 4 ? x / y : __fdividef(x, y);
}

/// silu(g), where e = e^-|g|.
template <class T>
__device__ float silu(float g, float e) {
  return quotient<T>(std::signbit(g) ? g * e : g, e + 1.0f);
}

/// P(g), where e = e^(-g^2 / 2).
template <class T>
__device__ float normal_below(float g, float e) {
  const float tail_of_e = e * tail(quotient<T>(1.0f, magnitude(g) + tail_shift));
  return std::signbit(g) ? tail_of_e : 1.0f - tail_of_e;
}

/// The exponential that a gate's activation is made of, and the activation.
template <GateActivation activation, class T>
__device__ float exponential_of_gate(float g) {
  if constexpr (activation == GateActivation::gelu_tanh)
    return exp_of_minus_abs<T>(inner(g));
  else if constexpr (activation == GateActivation::gelu)
    return exp_of_minus_abs<T>(half_square(g));
  else if constexpr (activation == GateActivation::clamped_silu)
    return exp_of_minus_abs<T>(g * clamped_slope);
  else
    return exp_of_minus_abs<T>(g);
}
template <GateActivation activation, class T>
__device__ float activated(float g, float e) {
  if constexpr (activation == GateActivation::gelu)
    return g * normal_below<T>(g, e);
  else
    return silu<T>(g, e);  // v has the sign of g
}

/// s = sigmoid(v) and 1 - s = sigmoid(-v), where v is g, or what gelu_tanh has for it.
struct SigmoidsOfOne {
  float of, complement;
};
template <class T>
__device__ SigmoidsOfOne sigmoids(float g, float e) {
  const float larger = quotient<T>(1.0f, e + 1.0f), smaller = e * larger;
  const bool negative = std::signbit(g);
  return {negative ? smaller : larger, negative ? larger : smaller};
}
/// 1 + g v' (1 - s), by which s becomes the derivative.
template <GateActivation activation>
__device__ float growth(float g, float complement) {
  if constexpr (activation == GateActivation::gelu_tanh) g = inner_growth(bounded(g));
  if constexpr (activation == GateActivation::clamped_silu) g = clamped_growth(g);
  return fmaf(g, complement, 1.0f);
}

}  // namespace tessera::kernels::gates
