#include "kernels/fixed/fixed.hpp"

#include <atomic>
#include <bit>
#include <cmath>

#include "kernels/parallel.hpp"
#include "kernels/vector.hpp"

namespace tessera::kernels {
namespace {

constexpr std::int64_t grain = 16384;

void raise_flag(std::int32_t* overflow) { std::atomic_ref<std::int32_t>(*overflow).store(1, std::memory_order_relaxed); }

/// sum + x as two's complement: wraps instead of being undefined; the flag is up by then.
std::int64_t wrapping_add(std::int64_t sum, std::int64_t x) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(sum) + static_cast<std::uint64_t>(x));
}

/// One element; true where it overflowed. A value out of range adds nothing.
bool accumulate_one(std::int64_t& sum, float x, std::int64_t limit) {
  bool fits = std::fabs(x) < 0x1p18f;  // false for NaN
  sum = wrapping_add(sum, fits ? std::llrint(static_cast<double>(x) * 0x1p44) : 0);
  return !fits || sum >= limit || sum <= -limit;
}

bool accumulate_range(std::int64_t* sum, const float* x, std::int64_t begin, std::int64_t end, std::int64_t limit) {
  std::int64_t i = begin;
  bool bad = false;
#ifdef TESSERA_AVX512
  // VCVTPD2QQ rounds to nearest even, as llrint does, so the remainder below has the same bits.
  unsigned bad_lanes = 0;
  for (; i + 8 <= end; i += 8) {
    __m512d value = _mm512_cvtps_pd(_mm256_loadu_ps(x + i));
    __mmask8 fits = _mm512_cmp_pd_mask(_mm512_abs_pd(value), _mm512_set1_pd(0x1p18), _CMP_LT_OQ);
    __m512i add = _mm512_maskz_cvtpd_epi64(fits, _mm512_mul_pd(value, _mm512_set1_pd(0x1p44)));
    __m512i total = _mm512_add_epi64(_mm512_loadu_si512(sum + i), add);
    __mmask8 large = _mm512_cmpge_epu64_mask(_mm512_abs_epi64(total), _mm512_set1_epi64(limit));
    bad_lanes |= static_cast<unsigned>(large) | (0xffu & ~static_cast<unsigned>(fits));
    _mm512_storeu_si512(sum + i, total);
  }
  bad = bad_lanes != 0;
#endif
  for (; i < end; ++i) bad |= accumulate_one(sum[i], x[i], limit);
  return bad;
}

template <bool Stream>
void to_float_range(float* out, const std::int64_t* sum, std::int64_t begin, std::int64_t end) {
  for_vectors(begin, end, [&](std::int64_t i, auto n) { store<Stream>(out + i, load(sum + i, n) * 0x1p-44f, n); });
  if constexpr (Stream) stream_fence();
}

/// A double as sign * mantissa * 2^-80 with an exact or once-rounded (to nearest even) mantissa below 2^126.
unsigned __int128 scaled_magnitude(double x) {
  std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  int biased = static_cast<int>(bits >> 52 & 0x7ff);
  std::uint64_t mantissa = (bits & ((std::uint64_t{1} << 52) - 1)) | (biased ? std::uint64_t{1} << 52 : 0);
  int shift = (biased ? biased : 1) - 1075 + 80;
  if (shift >= 0) return static_cast<unsigned __int128>(mantissa) << shift;
  if (shift < -54) return 0;
  std::uint64_t quotient = mantissa >> -shift, rest = mantissa - (quotient << -shift), half = std::uint64_t{1} << (-shift - 1);
  return quotient + (rest > half || (rest == half && (quotient & 1)));
}

}  // namespace

void fixed_accumulate(const Context&, std::int64_t* sum, const float* x, std::int64_t n, std::int32_t* overflow, std::int64_t limit) {
  parallel_ranges(n, grain, [&](std::int64_t begin, std::int64_t end) {
    if (accumulate_range(sum, x, begin, end, limit)) raise_flag(overflow);
  });
}

void fixed_add(const Context&, std::int64_t* sum, const std::int64_t* x, std::int64_t n, std::int32_t* overflow) {
  parallel_ranges(n, grain, [&](std::int64_t begin, std::int64_t end) {
    // Bits, not branches, so that the loop vectorises: the sign bit of `bad` is set by a sum that wraps, and where the distance of the
    // total to a bound is negative.
    std::uint64_t bad = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      auto a = static_cast<std::uint64_t>(sum[i]), b = static_cast<std::uint64_t>(x[i]), total = a + b,
           last = static_cast<std::uint64_t>(fixed_limit - 1);
      bad |= ((a ^ total) & (b ^ total)) | (last + total) | (last - total);
      sum[i] = static_cast<std::int64_t>(total);
    }
    if (bad >> 63) raise_flag(overflow);
  });
}

void fixed_to_float(const Context&, float* out, const std::int64_t* sum, std::int64_t n) {
  auto* range = worth_streaming(out, n * 4, 64) ? to_float_range<true> : to_float_range<false>;
  parallel_ranges(n, grain, [&](std::int64_t begin, std::int64_t end) { range(out, sum, begin, end); });
}

bool FixedSum::add(double x) {
  if (!(std::fabs(x) < 0x1p46)) return false;  // NaN too
  unsigned __int128 magnitude = scaled_magnitude(x);
  std::int64_t sign = std::signbit(x) ? -1 : 1;
  for (std::int64_t& l : limb) {
    l += sign * static_cast<std::int64_t>(static_cast<std::uint32_t>(magnitude));
    magnitude >>= 32;
  }
  return true;
}

void FixedSum::add(const FixedSum& other) {
  for (int i = 0; i < 4; ++i) limb[i] += other.limb[i];
}

double FixedSum::value() const {
  // Carries first: then (high, low) is the one two's complement number, rounded once below.
  __int128 low_limbs = static_cast<__int128>(limb[0]) + (static_cast<__int128>(limb[1]) << 32);
  __int128 high = static_cast<__int128>(limb[2]) + (static_cast<__int128>(limb[3]) << 32) + (low_limbs >> 64);
  std::uint64_t low = static_cast<std::uint64_t>(low_limbs);
  bool negative = high < 0;
  if (negative) {
    low = ~low + 1;
    high = ~high + (low == 0);
  }
  double magnitude;
  if (high >> 62 == 0) {
    magnitude = std::ldexp(static_cast<double>(static_cast<unsigned __int128>(high) << 64 | low), -80);
  } else {
    // Beyond 126 bits the low word is far below the last digit: one sticky bit stands for it.
    magnitude = std::ldexp(static_cast<double>(high << 1 | (low != 0)), -17);
  }
  return negative ? -magnitude : magnitude;
}

}  // namespace tessera::kernels
