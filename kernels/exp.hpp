// Powers and logarithms of one float or of sixteen lanes: the same bits on every target, GPUs among them.
#pragma once
#include "kernels/arithmetic.hpp"

namespace tessera::kernels {

namespace powers {
inline constexpr float round_to_whole = 0x1.8p23f;  // adding it rounds to nearest even and leaves the whole number in the low bits

/// 2^(r + n) for |r| <= 1/2 and n = shifted - round_to_whole in [-126, 0], the result normal: a minimax polynomial of degree 5 (relative
/// error 7.5e-8) whose exponent n is added to. Pairs of terms run side by side, since the chain from load to store is what a processor
/// waits for.
template <class F>
TESSERA_BOTH TESSERA_INLINE F exp2_of_parts(F r, F shifted) {
  using A = Arithmetic<F>;
  using Unsigned = typename A::Unsigned;
  F square = r * r;
  F high = A::fma(A::splat(1.339086336e-03f), r, A::splat(9.676031918e-03f));
  F middle = A::fma(A::splat(5.550357114e-02f), r, A::splat(2.402210749e-01f));
  F low = A::fma(A::splat(6.931471880e-01f), r, A::splat(1.000000075e+00f));
  F p = A::fma(A::fma(high, square, middle), square, low);
  return A::template bits<F>(A::template bits<Unsigned>(p) + (A::template bits<Unsigned>(shifted) << 23));
}
}  // namespace powers

/// 2^x for x <= 0, within 2.5e-7 relative; below -126 it stays at 2^-126. NaN stays NaN.
template <class F>
TESSERA_BOTH TESSERA_INLINE F exp2_nonpositive(F x) {
  using A = Arithmetic<F>;
  x = A::at_least(A::splat(-126.0f), x);
  F shifted = x + powers::round_to_whole;
  return powers::exp2_of_parts<F>(x - (shifted - powers::round_to_whole), shifted);
}

/// 2^y - 1 for y <= 0, however small y is, within 2e-7 relative: a whole power of two and a polynomial without a constant (minimax of
/// degree 6, relative error 1.1e-8), of which nothing cancels. NaN stays NaN.
template <class F>
TESSERA_BOTH TESSERA_INLINE F exp2_less_one(F y) {
  using A = Arithmetic<F>;
  using Unsigned = typename A::Unsigned;
  y = A::at_least(A::splat(-126.0f), y);
  const F shifted = y + powers::round_to_whole, r = y - (shifted - powers::round_to_whole), square = r * r;
  const F high = A::fma(A::splat(1.540352312e-04f), r, A::splat(1.339073543e-03f));
  const F middle = A::fma(A::splat(9.618237461e-03f), r, A::splat(5.550357434e-02f));
  const F low = A::fma(A::splat(2.402264980e-01f), r, A::splat(6.931471879e-01f));
  const F fraction = A::fma(A::fma(high, square, middle), square, low) * r;  // 2^r - 1
  const F power = A::template bits<F>((A::template bits<Unsigned>(shifted) << 23) + 0x3f800000u);
  return A::fma(power, fraction, power - 1.0f);
}

/// e^x for x <= 0, within 2.5e-7 relative; garbage below lowest_exponent. NaN gives NaN.
inline constexpr float lowest_exponent = -87.33654f;  // e^x is normal
template <class F>
TESSERA_BOTH TESSERA_INLINE F exp_nonpositive_in_range(F x) {
  using A = Arithmetic<F>;
  constexpr float log2_e = 0x1.715476p0f, log2_e_rest = 0x1.4ae0c00000000p-26f;
  F shifted = A::fma(x, A::splat(log2_e), A::splat(powers::round_to_whole));
  F r = A::fma(x, A::splat(log2_e), powers::round_to_whole - shifted);
  r = A::fma(x, A::splat(log2_e_rest), r);
  return powers::exp2_of_parts<F>(r, shifted);
}
/// The same; below -87.3 it stays at e^-87.3, about 2^-126.
template <class F>
TESSERA_BOTH TESSERA_INLINE F exp_nonpositive(F x) {
  return exp_nonpositive_in_range<F>(Arithmetic<F>::at_least(Arithmetic<F>::splat(lowest_exponent), x));
}

/// log x for normal x > 0: x = 2^e m with m in [sqrt 1/2, sqrt 2), log m = 2 artanh s with s = (m-1)/(m+1). Within 2 ulp.
template <class F>
TESSERA_BOTH TESSERA_INLINE F log_of_normal(F x) {
  using A = Arithmetic<F>;
  using Int = typename A::Int;
  constexpr std::int32_t sqrt_half = 0x3f3504f3;
  Int bits = A::template bits<Int>(x) - sqrt_half;
  F e = A::to_float(bits >> 23);
  F m = A::template bits<F>((bits & 0x7fffff) + sqrt_half);
  F s = (m - 1.0f) / (m + 1.0f), z = s * s;
  F series = A::fma(z, A::splat(2.0f / 9), A::splat(2.0f / 7));
  series = A::fma(series, z, A::splat(2.0f / 5));
  series = A::fma(series, z, A::splat(2.0f / 3));
  F fraction = A::fma(series * z, s, s + s);
  return A::fma(e, A::splat(0x1.62e430p-1f), fraction);
}

TESSERA_BOTH inline float sigmoid(float x) {
  const float e = exp_nonpositive(x < 0 ? x : -x);
  return (x < 0 ? e : 1.0f) / (1.0f + e);
}
/// log(1 + e^x), however small it is; its derivative is the sigmoid.
TESSERA_BOTH inline float softplus(float x) {
  const float e = exp_nonpositive(x < 0 ? x : -x), sum = 1.0f + e;
  // What the sum has lost of e, its logarithm has lost too.
  const float rest = sum > 1.0f ? log_of_normal(sum) * (e / (sum - 1.0f)) : e;
  return x > 0 ? x + rest : rest;
}

}  // namespace tessera::kernels
