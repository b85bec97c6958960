// Exponentials and logarithms of doubles. They use sums, products and quotients alone, so every processor and GPU computes the same bits;
// a C library picks another version for another processor.
#pragma once
#include <bit>
#include <cstdint>

#include "base/types.hpp"

namespace tessera::kernels::doubles {

inline constexpr double ln2_high = 0x1.62e42fee00000p-1, ln2_low = 0x1.a39ef35793c76p-33;  ///< ln2_high has 20 zero bits at its end
inline constexpr double lowest_exponent = -708;                                            ///< e^x is normal

/// x = whole ln 2 + rest, with |rest| <= ln 2 / 2, for |x| < 1000.
struct Parts {
  double rest = 0;
  std::int64_t whole = 0;
};
TESSERA_BOTH inline Parts parts_of(double x) {
  constexpr double to_whole = 0x1.8p52;  // adding it rounds to nearest even and leaves the whole number in the low bits
  const double shifted = x * 0x1.71547652b82fep0 + to_whole, whole = shifted - to_whole;
  const double rest = (x - whole * ln2_high) - whole * ln2_low;
  return {rest, static_cast<std::int64_t>(whole)};
}

/// 2^exponent, a normal number.
TESSERA_BOTH inline double power_of_two(std::int64_t exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

/// e^r - 1 for |r| <= ln 2 / 2: the Taylor series to r^14 / 14!, whose rest is below 2^-64 of the result.
TESSERA_BOTH inline double exp_less_one_of_rest(double r) {
  double p = 1.0 / 87178291200;
  p = p * r + 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  return p * r * r + r;
}

/// e^x for x <= 0; 0 below -708. NaN stays NaN.
TESSERA_BOTH inline double exp_nonpositive(double x) {
  if (x < lowest_exponent) return 0;
  if (x != x) return x;
  const Parts parts = parts_of(x);
  return (1 + exp_less_one_of_rest(parts.rest)) * power_of_two(parts.whole);
}

/// e^x - 1 for x <= 0, however small x is. NaN stays NaN.
TESSERA_BOTH inline double exp_less_one(double x) {
  if (x < -40) return -1;
  if (x != x) return x;
  const Parts parts = parts_of(x);
  const double power = power_of_two(parts.whole);
  return exp_less_one_of_rest(parts.rest) * power + (power - 1);
}

/// log x for normal x > 0: x = 2^e m with m in [sqrt 1/2, sqrt 2), log m = 2 artanh s with s = (m-1)/(m+1). The rest of the series is
/// below 2^-60 of the result. NaN stays NaN.
TESSERA_BOTH inline double log_of_normal(double x) {
  if (x != x) return x;
  constexpr std::int64_t sqrt_half = 0x3fe6a09e667f3bcd;
  const std::int64_t bits = std::bit_cast<std::int64_t>(x) - sqrt_half;
  const auto e = static_cast<double>(bits >> 52);
  const double f = std::bit_cast<double>((bits & 0xfffffffffffff) + sqrt_half) - 1;
  const double s = f / (2 + f), z = s * s;
  double series = 2.0 / 23;
  series = series * z + 2.0 / 21;
  series = series * z + 2.0 / 19;
  series = series * z + 2.0 / 17;
  series = series * z + 2.0 / 15;
  series = series * z + 2.0 / 13;
  series = series * z + 2.0 / 11;
  series = series * z + 2.0 / 9;
  series = series * z + 2.0 / 7;
  series = series * z + 2.0 / 5;
  series = series * z + 2.0 / 3;
  // 2 s = f - s f: the larger term is exact.
  return e * ln2_high + (f - (s * f - (s * (z * series) + e * ln2_low)));
}

/// log(1 + x) for x > -1, however small x is. NaN stays NaN.
TESSERA_BOTH inline double log_of_one_more(double x) {
  const double sum = 1 + x;
  // The sum loses low bits of x; their share of the logarithm is added.
  return log_of_normal(sum) + (x - (sum - 1)) / sum;
}

/// 1 / (1 + e^-x)
TESSERA_BOTH inline double sigmoid(double x) {
  const double e = exp_nonpositive(x < 0 ? x : -x);
  return (x < 0 ? e : 1) / (1 + e);
}
/// log sigmoid(x), for any x.
TESSERA_BOTH inline double log_sigmoid(double x) { return (x < 0 ? x : 0) - log_of_one_more(exp_nonpositive(x < 0 ? x : -x)); }

/// log(1 - e^a) for a < 0, in the form that keeps its digits: log1p(-e^a) below -ln 2, else log(-expm1(a)).
TESSERA_BOTH inline double log_one_less_exp(double a) {
  return a < -0x1.62e42fefa39efp-1 ? log_of_one_more(-exp_nonpositive(a)) : log_of_normal(-exp_less_one(a));
}

}  // namespace tessera::kernels::doubles
