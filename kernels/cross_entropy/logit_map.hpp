// What a mapped logit is, and how fast it grows, for one float or for sixteen lanes.
#pragma once
#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/exp.hpp"

namespace tessera::kernels::logit_map {

struct Constants {
  float scale = 1, cap = 0, per_cap = 0;  ///< scale / cap
  TESSERA_BOTH explicit Constants(const LogitMap& map) : scale(map.scale), cap(map.cap), per_cap(map.cap != 0 ? map.scale / map.cap : 0) {}
};

template <class F>
struct Mapped {
  F value, slope;  ///< slope: of the value by the logit
};

/// tanh z and its derivative, where e = e^-2|z| and r = 1 / (1 + e). The derivative 4 e r^2 keeps its digits where the tanh is 1. Near 0,
/// where 1 - 2 e r has lost them, the tanh is a minimax polynomial of degree 11, a fit of our own (relative error 4.4e-9).
template <class F>
TESSERA_BOTH TESSERA_INLINE Mapped<F> tanh_of_parts(F z, F e, F r) {
  using A = Arithmetic<F>;
  using Unsigned = typename A::Unsigned;
  constexpr float near = 0.625f;
  const F square = z * z, rest = (e + e) * r;
  F p = A::fma(A::splat(-5.704986516e-03f), square, A::splat(2.063908675e-02f));
  p = A::fma(p, square, A::splat(-5.373971491e-02f));
  p = A::fma(p, square, A::splat(1.333144220e-01f));
  p = A::fma(p, square, A::splat(-3.333328194e-01f));
  const Unsigned bits = A::template bits<Unsigned>(z);
  const F far = A::template bits<F>(A::template bits<Unsigned>(1.0f - rest) | (bits & 0x80000000u));
  const auto is_near = A::template bits<F>(bits & 0x7fffffffu) < A::splat(near);
  return {A::select(is_near, A::fma(z * square, p, z), far), rest * (r + r)};
}
/// e^-2|z|'s exponent.
template <class F>
TESSERA_BOTH TESSERA_INLINE F exponent(F z) {
  using A = Arithmetic<F>;
  return A::template bits<F>(A::template bits<typename A::Unsigned>(z) | 0x80000000u) * 2.0f;
}

/// The host's: a logit as `map` has it.
template <class F>
TESSERA_INLINE Mapped<F> mapped(F x, const Constants& map) {
  using A = Arithmetic<F>;
  if (map.cap == 0) return {x * map.scale, A::splat(map.scale)};
  const F z = x * map.per_cap, e = exp_nonpositive<F>(exponent(z));
  const Mapped<F> tanh = tanh_of_parts<F>(z, e, 1.0f / (e + 1.0f));
  return {tanh.value * map.cap, tanh.slope * map.scale};
}

}  // namespace tessera::kernels::logit_map
