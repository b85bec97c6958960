#include "kernels/fixed/fixed.hpp"

#include <atomic>
#include <bit>
#include <cmath>

#include "kernels/parallel.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {
namespace {

constexpr std::int64_t fixed_grain = 16384;

void raise(std::int32_t* faults, std::int32_t bits) { std::atomic_ref<std::int32_t>(*faults).fetch_or(bits, std::memory_order_relaxed); }

/// sum + x as two's complement: wraps instead of being undefined; the flag is up by then.
std::int64_t wrapping_add(std::int64_t sum, std::int64_t x) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(sum) + static_cast<std::uint64_t>(x));
}

/// One element; which faults it has. `factor` brings x to fixed point.
std::int32_t accumulate_one(std::int64_t& sum, float x, double factor, std::int64_t limit) {
  const double value = static_cast<double>(x) * factor;
  if (!std::isfinite(x)) return fixed_not_finite;
  const bool fits = std::fabs(value) < 0x1p62;
  sum = wrapping_add(sum, fits ? std::llrint(value) : 0);
  return !fits || sum >= limit || sum <= -limit ? fixed_out_of_range : 0;
}

std::int32_t accumulate_range(const FixedAccumulate& p, double factor, std::int64_t begin, std::int64_t end) {
  std::int64_t i = begin;
  std::int32_t faults = 0;
#ifdef TESSERA_AVX512
  // VCVTPD2QQ rounds to nearest even, as llrint does, so the remainder below has the same bits.
  unsigned bad_lanes = 0, wild_lanes = 0;
  for (; i + 8 <= end; i += 8) {
    const __m512d value = _mm512_mul_pd(_mm512_cvtps_pd(_mm256_loadu_ps(p.x + i)), _mm512_set1_pd(factor));
    const __m512d magnitude = _mm512_abs_pd(value);
    const __mmask8 fits = _mm512_cmp_pd_mask(magnitude, _mm512_set1_pd(0x1p62), _CMP_LT_OQ);
    const __mmask8 finite = _mm512_cmp_pd_mask(magnitude, _mm512_set1_pd(INFINITY), _CMP_LT_OQ);
    const __m512i total = _mm512_add_epi64(_mm512_loadu_si512(p.sum + i), _mm512_maskz_cvtpd_epi64(fits, value));
    const __mmask8 large = _mm512_cmpge_epu64_mask(_mm512_abs_epi64(total), _mm512_set1_epi64(p.limit));
    bad_lanes |= (static_cast<unsigned>(large) | (0xffu & ~static_cast<unsigned>(fits))) & static_cast<unsigned>(finite);
    wild_lanes |= 0xffu & ~static_cast<unsigned>(finite);
    _mm512_storeu_si512(p.sum + i, total);
  }
  faults = (bad_lanes ? fixed_out_of_range : 0) | (wild_lanes ? fixed_not_finite : 0);
#endif
  for (; i < end; ++i) faults |= accumulate_one(p.sum[i], p.x[i], factor, p.limit);
  return faults;
}

template <bool Stream, class Out>
void round_range(Out* out, const std::int64_t* sum, std::int64_t begin, std::int64_t end) {
  for_vectors(begin, end, [&](std::int64_t i, auto n) { store<Stream>(out + i, load(sum + i, n) * 0x1p-44f, n); });
  if constexpr (Stream) stream_fence();
}

template <class Out>
void round_sums(Out* out, const std::int64_t* sum, std::int64_t n) {
  auto* range = worth_streaming(out, n * static_cast<std::int64_t>(sizeof(Out)), 64) ? round_range<true, Out> : round_range<false, Out>;
  parallel_ranges(n, fixed_grain, [&](std::int64_t begin, std::int64_t end) { range(out, sum, begin, end); });
}

}  // namespace

void fixed_accumulate(const Context&, const FixedAccumulate& p) {
  const double factor = p.scale ? 0x1p44 / static_cast<double>(*p.scale) : 0x1p44;
  parallel_ranges(p.n, fixed_grain, [&](std::int64_t begin, std::int64_t end) {
    if (const std::int32_t faults = accumulate_range(p, factor, begin, end)) raise(p.faults, faults);
  });
}

void fixed_add(const Context&, std::int64_t* sum, const std::int64_t* x, std::int64_t n, std::int32_t* faults) {
  parallel_ranges(n, fixed_grain, [&](std::int64_t begin, std::int64_t end) {
    // Bits, not branches, so that the loop vectorises: the sign bit of `bad` is set by a sum that wraps, and where the distance of the
    // total to a bound is negative.
    std::uint64_t bad = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      auto a = static_cast<std::uint64_t>(sum[i]), b = static_cast<std::uint64_t>(x[i]), total = a + b,
           last = static_cast<std::uint64_t>(fixed_limit - 1);
      bad |= ((a ^ total) & (b ^ total)) | (last + total) | (last - total);
      sum[i] = static_cast<std::int64_t>(total);
    }
    if (bad >> 63) raise(faults, fixed_out_of_range);
  });
}

void fixed_to_float(const Context&, float* out, const std::int64_t* sum, std::int64_t n) { round_sums(out, sum, n); }
void fixed_to_bf16(const Context&, bf16* out, const std::int64_t* sum, std::int64_t n) { round_sums(out, sum, n); }

}  // namespace tessera::kernels::host
