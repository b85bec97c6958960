// e^x and log x of sixteen lanes, each within 2 ulp in fp32, the same bits on every target.
#pragma once
#include "kernels/vector.hpp"

namespace tessera::kernels {

/// 2^n * p for p near 1 and whole n in [-152, 130], rounded once where the result is subnormal.
TESSERA_INLINE f32x16 scale_by_power(f32x16 p, f32x16 n) {
#ifdef TESSERA_AVX512
  return _mm512_scalef_ps(p, n);
#else
  i32x16 e = __builtin_convertvector(n, i32x16), half = e >> 1;
  return p * std::bit_cast<f32x16>((half + 127) << 23) * std::bit_cast<f32x16>((e - half + 127) << 23);
#endif
}

/// x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r), q interpolated at Chebyshev nodes (relative error 1.0e-8).
/// Infinities give inf and 0, NaN stays NaN.
TESSERA_INLINE f32x16 exp(f32x16 x) {
  constexpr float ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;  // ln2_high * n is exact for |n| < 2^10
  constexpr float round_to_whole = 0x1.8p23f;                          // adding and subtracting it rounds to nearest even
  x = clamp(x, -104.0f, 89.0f);                                        // beyond: 0 and infinity
  f32x16 n = fma(x, splat(0x1.715476p0f), splat(round_to_whole)) - round_to_whole;
  f32x16 r = fma(n, splat(-ln2_high), x);
  r = fma(n, splat(-ln2_low), r);
  f32x16 q = fma(splat(1.3926213466332444e-3f), r, splat(8.363202971575855e-3f));
  q = fma(q, r, splat(4.166655443768594e-2f));
  q = fma(q, r, splat(1.6666576845993977e-1f));
  q = fma(q, r, splat(0.5f));
  return scale_by_power(fma(q, r * r, r) + 1.0f, n);
}

/// log x for normal x > 0: x = 2^e m with m in [sqrt 1/2, sqrt 2), log m = 2 artanh s with s = (m-1)/(m+1).
TESSERA_INLINE f32x16 log_of_normal(f32x16 x) {
  constexpr std::int32_t sqrt_half = 0x3f3504f3;
  i32x16 bits = std::bit_cast<i32x16>(x) - sqrt_half;
  f32x16 e = __builtin_convertvector(bits >> 23, f32x16);
  f32x16 m = std::bit_cast<f32x16>((bits & 0x7fffff) + sqrt_half);
  f32x16 s = (m - 1.0f) / (m + 1.0f), z = s * s;
  f32x16 series = fma(z, splat(2.0f / 9), splat(2.0f / 7));
  series = fma(series, z, splat(2.0f / 5));
  series = fma(series, z, splat(2.0f / 3));
  f32x16 fraction = fma(series * z, s, s + s);
  return fma(e, splat(0x1.62e430p-1f), fraction);
}

}  // namespace tessera::kernels
