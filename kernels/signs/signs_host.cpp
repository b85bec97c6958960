// Bound by memory: a pack reads x and its error once and writes the error, 12 bytes an element, after a pass of 8 that sums squares.
#include <atomic>

#include "kernels/parallel.hpp"
#include "kernels/signs/sign_code.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {
namespace {

constexpr std::int64_t word_grain = 128;
static_assert(sign_word == 2 * lanes);

#if !defined(TESSERA_AVX512)
alignas(64) constexpr std::int32_t lane_bits[lanes] = {1,      2,      4,       8,       16,      32,      64,      128,
                                                       1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
#endif

/// Bit k of lane k, where that is not below 0.
TESSERA_INLINE std::uint32_t signs_of(const f32x16& x) {
#if defined(TESSERA_AVX512)
  return _mm512_cmp_ps_mask(x.part[0], _mm512_setzero_ps(), _CMP_NLT_UQ);
#elif defined(TESSERA_AVX2)
  std::uint32_t bits = 0;
  unrolled<parts>([&](auto k) __attribute__((always_inline)) {
    bits |= static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x.part[k], _mm256_setzero_ps(), _CMP_NLT_UQ))) << (8 * k);
  });
  return bits;
#else
  std::uint32_t bits = 0;
  for (int lane = 0; lane < lanes; ++lane) bits |= static_cast<std::uint32_t>(!(x[lane] < 0)) << lane;
  return bits;
#endif
}

/// up where the lane's bit is 1, -up elsewhere.
TESSERA_INLINE f32x16 values_of(std::uint32_t bits, const f32x16& up, const f32x16& down) {
  f32x16 r;
#if defined(TESSERA_AVX512)
  r.part[0] = _mm512_mask_blend_ps(static_cast<__mmask16>(bits), down.part[0], up.part[0]);
#else
  i32x16 of_lane;
  std::memcpy(&of_lane, lane_bits, sizeof of_lane);
  r = select((i32x16(static_cast<std::int32_t>(bits & 0xffffu)) & of_lane) != 0, up, down);
#endif
  return r;
}

/// f(i, count, half): vectors of the elements from 32 word on, below n.
template <class F>
TESSERA_INLINE void for_halves(std::int64_t word, std::int64_t n, F&& f) {
  const std::int64_t i = word * sign_word, left = n - i;
  if (left >= sign_word) {
    f(i, Whole{}, 0), f(i + lanes, Whole{}, 1);
    return;
  }
  if (left > 0) f(i, static_cast<int>(std::min<std::int64_t>(left, lanes)), 0);
  if (left > lanes) f(i + lanes, static_cast<int>(left - lanes), 1);
}

/// f(part, word of the part, word) for the words of some parts that follow each other.
template <class F>
void for_words(std::int64_t part_words, std::int64_t words, F&& f) {
  parallel_ranges(words, word_grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t word = begin; word < end;) {
      const std::int64_t part = word / part_words, first = part * part_words, stop = std::min(end, first + part_words);
      for (; word < stop; ++word) f(part, word - first, word);
    }
    stream_fence();
  });
}

TESSERA_INLINE f32x16 with_error(const float* x, const float* error, std::int64_t i, auto count) {
  const f32x16 e = load(error + i, count);
  return x ? load(x + i, count) + e : e;
}

/// Elements [i, i + count) of a block: element k goes to chain k % 32; each chain runs in order, and the chains are joined by halves.
double block_squares(const float* x, const float* error, std::int64_t i, std::int64_t count) {
  f64x8 sum[4] = {};
  alignas(64) float some[sign_word] = {};
  const auto add = [&] {
    unrolled<4>([&](auto k) __attribute__((always_inline)) {
      const f64x8 v = to_f64(some + 8 * k);
      sum[k] = fma(v, v, sum[k]);
    });
  };
  std::int64_t at = 0;
  for (; at + sign_word <= count; at += sign_word) {
    prefetch(error + i + at + 2 * sign_block), prefetch(error + i + at + 2 * sign_block + lanes);
    if (x) prefetch(x + i + at + 2 * sign_block), prefetch(x + i + at + 2 * sign_block + lanes);
    store(some, with_error(x, error, i + at, Whole{})), store(some + lanes, with_error(x, error, i + at + lanes, Whole{}));
    add();
  }
  if (at < count) {
    std::fill_n(some, sign_word, 0.0f);
    for_vectors(at, count, [&](std::int64_t k, auto n) { store(some + (k - at), with_error(x, error, i + k, n), n); });
    add();
  }
  return horizontal_sum((sum[0] + sum[2]) + (sum[1] + sum[3]));
}

TESSERA_INLINE std::uint32_t bits_of_half(std::uint32_t word, int half) { return half == 0 ? word : word >> lanes; }

template <bool stream>
void unpack(const UnpackSigns& p) {
  for_words(p.part / sign_word, ceil_div(p.n, sign_word), [&](std::int64_t part, std::int64_t at, std::int64_t word) {
    const std::uint32_t signs = p.words[part * p.step + at];
    const float scale = p.scale[part * p.step];
    for_halves(
        word, p.n, [&](std::int64_t i, auto count, int half) __attribute__((always_inline)) {
          store<stream>(p.x + i, values_of(bits_of_half(signs, half), splat(scale), splat(-scale)), count);
        });
  });
}

}  // namespace

void sum_sign_squares(const Context&, const SumSignSquares& p) {
  parallel_ranges(ceil_div(p.n, sign_block), 16, [&](std::int64_t begin, std::int64_t end) {
    FixedSum local;
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t i = block * sign_block;
      local.add(block_squares(p.x, p.error, i, std::min(sign_block, p.n - i)));  // what does not fit adds nothing
    }
    for (int i = 0; i < 4; ++i) std::atomic_ref<std::int64_t>(p.sum->limb[i]).fetch_add(local.limb[i], std::memory_order_relaxed);
  });
}

void pack_signs(const Context&, const PackSigns& p) {
  if (p.part == 0) return;
  const float scale = sign_scale(*p.sum, p.n);
  for (std::int64_t part = 0; part < p.parts; ++part) p.scale[part * p.step] = scale;
  const f32x16 up = splat(scale), down = splat(-scale);
  const std::int64_t part_words = p.part / sign_word;
  for_words(part_words, part_words * p.parts, [&](std::int64_t part, std::int64_t at, std::int64_t word) {
    std::uint32_t signs = 0;
    for_halves(
        word, p.n, [&](std::int64_t i, auto count, int half) __attribute__((always_inline)) {
          const f32x16 v = with_error(p.x, p.error, i, count);
          std::uint32_t bits = signs_of(v);
          store(p.error + i, v - values_of(bits, up, down), count);
          if constexpr (!is_whole<decltype(count)>) bits &= (1u << count) - 1u;
          signs |= bits << (lanes * half);
        });
    p.words[part * p.step + at] = signs;
  });
}

void sum_signs(const Context&, const SumSigns& p) {
  const float share = 1.0f / static_cast<float>(p.members);
  for_words(ceil_div(p.n, sign_word), ceil_div(p.n, sign_word), [&](std::int64_t, std::int64_t, std::int64_t word) {
    for_halves(
        word, p.n, [&](std::int64_t i, auto count, int half) __attribute__((always_inline)) {
          f32x16 sum = splat(0);
          for (int m = 0; m < p.members; ++m) {
            const float scale = p.scale[m * p.step] * share;
            sum = sum + values_of(bits_of_half(p.words[m * p.step + word], half), splat(scale), splat(-scale));
          }
          store(p.error + i, sum + load(p.error + i, count), count);
        });
  });
}

void unpack_signs(const Context&, const UnpackSigns& p) {
  if (p.n == 0) return;
  worth_streaming(p.x, p.n * static_cast<std::int64_t>(sizeof(float)), 64) ? unpack<true>(p) : unpack<false>(p);
}

}  // namespace tessera::kernels::host
