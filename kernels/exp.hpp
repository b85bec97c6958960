// e^x and log x, each within 2 ulp in fp32, of one float or of sixteen lanes: the same bits on every target, GPUs among them.
#pragma once
#include "kernels/arithmetic.hpp"

namespace tessera::kernels {

/// x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r), q interpolated at Chebyshev nodes (relative error 1.0e-8).
/// Infinities give inf and 0, NaN stays NaN.
template <class F>
TESSERA_BOTH TESSERA_INLINE F exp(F x) {
  using A = Arithmetic<F>;
  constexpr float ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;  // ln2_high * n is exact for |n| < 2^10
  constexpr float round_to_whole = 0x1.8p23f;                          // adding and subtracting it rounds to nearest even
  x = A::clamp(x, -104.0f, 89.0f);                                     // beyond: 0 and infinity
  F n = A::fma(x, A::splat(0x1.715476p0f), A::splat(round_to_whole)) - round_to_whole;
  F r = A::fma(n, A::splat(-ln2_high), x);
  r = A::fma(n, A::splat(-ln2_low), r);
  F q = A::fma(A::splat(1.3926213466332444e-3f), r, A::splat(8.363202971575855e-3f));
  q = A::fma(q, r, A::splat(4.166655443768594e-2f));
  q = A::fma(q, r, A::splat(1.6666576845993977e-1f));
  q = A::fma(q, r, A::splat(0.5f));
  return A::scale_by_power(A::fma(q, r * r, r) + 1.0f, n);
}

/// log x for normal x > 0: x = 2^e m with m in [sqrt 1/2, sqrt 2), log m = 2 artanh s with s = (m-1)/(m+1).
template <class F>
TESSERA_BOTH TESSERA_INLINE F log_of_normal(F x) {
  using A = Arithmetic<F>;
  using Int = typename A::Int;
  constexpr std::int32_t sqrt_half = 0x3f3504f3;
  Int bits = std::bit_cast<Int>(x) - sqrt_half;
  F e = A::to_float(bits >> 23);
  F m = std::bit_cast<F>((bits & 0x7fffff) + sqrt_half);
  F s = (m - 1.0f) / (m + 1.0f), z = s * s;
  F series = A::fma(z, A::splat(2.0f / 9), A::splat(2.0f / 7));
  series = A::fma(series, z, A::splat(2.0f / 5));
  series = A::fma(series, z, A::splat(2.0f / 3));
  F fraction = A::fma(series * z, s, s + s);
  return A::fma(e, A::splat(0x1.62e430p-1f), fraction);
}

}  // namespace tessera::kernels
