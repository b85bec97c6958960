// Powers and logarithms of sixteen lanes, the same bits on every target.
#pragma once
#include "kernels/vector.hpp"

namespace tessera::kernels {

namespace powers {
inline constexpr float round_to_whole = 0x1.8p23f;  // adding it rounds to nearest even and leaves the whole number in the low bits

/// 2^(r + n) for |r| <= 1/2 and n = shifted - round_to_whole in [-126, 0], the result normal: a minimax polynomial of degree 5 (relative
/// error 7.5e-8) whose exponent n is added to. Pairs of terms run side by side, since the chain from load to store is what a processor
/// waits for.
TESSERA_INLINE f32x16 exp2_of_parts(f32x16 r, f32x16 shifted) {
  f32x16 square = r * r;
  f32x16 high = fma(splat(1.339086336e-03f), r, splat(9.676031918e-03f));
  f32x16 middle = fma(splat(5.550357114e-02f), r, splat(2.402210749e-01f));
  f32x16 low = fma(splat(6.931471880e-01f), r, splat(1.000000075e+00f));
  f32x16 p = fma(fma(high, square, middle), square, low);
  return bits_as<f32x16>(bits_as<u32x16>(p) + (bits_as<u32x16>(shifted) << 23));
}
}  // namespace powers

/// 2^x for x <= 0, within 2.5e-7 relative; below -126 it stays at 2^-126. NaN stays NaN.
TESSERA_INLINE f32x16 exp2_nonpositive(f32x16 x) {
  x = max(splat(-126.0f), x);
  f32x16 shifted = x + powers::round_to_whole;
  return powers::exp2_of_parts(x - (shifted - powers::round_to_whole), shifted);
}

/// e^x for x <= 0, within 2.5e-7 relative; garbage below lowest_exponent. NaN gives NaN.
inline constexpr float lowest_exponent = -87.33654f;  // e^x is normal
TESSERA_INLINE f32x16 exp_nonpositive_in_range(f32x16 x) {
  constexpr float log2_e = 0x1.715476p0f, log2_e_rest = 0x1.4ae0c00000000p-26f;
  f32x16 shifted = fma(x, splat(log2_e), splat(powers::round_to_whole));
  f32x16 r = fma(x, splat(log2_e), powers::round_to_whole - shifted);
  r = fma(x, splat(log2_e_rest), r);
  return powers::exp2_of_parts(r, shifted);
}
/// The same; below -87.3 it stays at e^-87.3, about 2^-126.
TESSERA_INLINE f32x16 exp_nonpositive(f32x16 x) { return exp_nonpositive_in_range(max(splat(lowest_exponent), x)); }

/// log x for normal x > 0: x = 2^e m with m in [sqrt 1/2, sqrt 2), log m = 2 artanh s with s = (m-1)/(m+1). Within 2 ulp.
TESSERA_INLINE f32x16 log_of_normal(f32x16 x) {
  constexpr std::int32_t sqrt_half = 0x3f3504f3;
  i32x16 bits = bits_as<i32x16>(x) - sqrt_half;
  f32x16 e = convert<f32x16>(bits >> 23);
  f32x16 m = bits_as<f32x16>((bits & 0x7fffff) + sqrt_half);
  f32x16 s = (m - 1.0f) / (m + 1.0f), z = s * s;
  f32x16 series = fma(z, splat(2.0f / 9), splat(2.0f / 7));
  series = fma(series, z, splat(2.0f / 5));
  series = fma(series, z, splat(2.0f / 3));
  f32x16 fraction = fma(series * z, s, s + s);
  return fma(e, splat(0x1.62e430p-1f), fraction);
}

}  // namespace tessera::kernels
