// The arithmetic of RMSNorm, for one float and for sixteen lanes, on host and GPU.
// With y = d_out * factor and xhat = x * rstd: d_x = rstd * (y - xhat * mean(y * xhat)) [+ d_residual], d_weight += d_out * xhat.
#pragma once
#include "kernels/arithmetic.hpp"

namespace tessera::kernels::norm {

/// 1 / sqrt(mean(x^2) + eps) of a row of C elements, from the sum of their squares.
TESSERA_BOTH inline float reciprocal_rms(float squares, std::int64_t C, float eps) {
  return 1.0f / Arithmetic<float>::sqrt(squares / static_cast<float>(C) + eps);
}
/// What a norm scales by: offset + weight. Without an offset the weight itself, whose sign a sum with 0 would lose where it is 0.
template <bool Offset, class F>
TESSERA_BOTH TESSERA_INLINE F factor(const F& weight, float offset) {
  if constexpr (Offset) {
    return weight + Arithmetic<F>::splat(offset);
  } else {
    return weight;
  }
}
template <class F>
TESSERA_BOTH TESSERA_INLINE F scaled(const F& x, const F& weight, float rstd) {
  return x * Arithmetic<F>::splat(rstd) * weight;
}

/// residual + scaled, rounded less often.
template <class F>
TESSERA_BOTH TESSERA_INLINE F add_scaled(const F& x, const F& weight, float rstd, const F& residual) {
  return Arithmetic<F>::fma(x * Arithmetic<F>::splat(rstd), weight, residual);
}

/// sum + d_out weight x: over a row, the dot product that along_x takes.
template <class F>
TESSERA_BOTH TESSERA_INLINE F add_dot(const F& d_out, const F& weight, const F& x, const F& sum) {
  return Arithmetic<F>::fma(d_out * weight, x, sum);
}
/// What of d_x lies along x, as a multiple of x.
TESSERA_BOTH inline float along_x(float dot, std::int64_t C, float rstd) { return -(dot / static_cast<float>(C)) * rstd * rstd * rstd; }
/// d_x without the residual's part: `rest` is x * along_x, with d_residual added where there is one.
template <class F>
TESSERA_BOTH TESSERA_INLINE F gradient(const F& d_out, const F& weight, float rstd, const F& rest) {
  return Arithmetic<F>::fma(d_out * weight, Arithmetic<F>::splat(rstd), rest);
}
template <class F>
TESSERA_BOTH TESSERA_INLINE F add_weight_gradient(const F& d_out, const F& x, float rstd, const F& d_weight) {
  return Arithmetic<F>::fma(d_out, x * Arithmetic<F>::splat(rstd), d_weight);
}

}  // namespace tessera::kernels::norm
