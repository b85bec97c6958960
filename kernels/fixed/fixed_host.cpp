#include "kernels/fixed/fixed.hpp"

#include <atomic>
#include <bit>
#include <cmath>

#include "kernels/parallel.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {
namespace {

constexpr std::int64_t fixed_grain = 16384;

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

void fixed_accumulate(const Context&, std::int64_t* sum, const float* x, std::int64_t n, std::int32_t* overflow, std::int64_t limit) {
  parallel_ranges(n, fixed_grain, [&](std::int64_t begin, std::int64_t end) {
    if (accumulate_range(sum, x, begin, end, limit)) raise_flag(overflow);
  });
}

void fixed_add(const Context&, std::int64_t* sum, const std::int64_t* x, std::int64_t n, std::int32_t* overflow) {
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
    if (bad >> 63) raise_flag(overflow);
  });
}

void fixed_to_float(const Context&, float* out, const std::int64_t* sum, std::int64_t n) { round_sums(out, sum, n); }
void fixed_to_bf16(const Context&, bf16* out, const std::int64_t* sum, std::int64_t n) { round_sums(out, sum, n); }

}  // namespace tessera::kernels::host
