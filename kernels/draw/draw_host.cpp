// A vocabulary's logits are read from the caches, each block once more from the first-level one, and nothing of their length is written.
// Blocks are the same whatever the threads, so that who computes one moves no bit.
#include "kernels/draw/draw.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/check.hpp"
#include "kernels/argmax/maxima_host.hpp"
#include "kernels/exp.hpp"
#include "kernels/parallel.hpp"

namespace tessera::kernels {
namespace {

constexpr std::int64_t draw_block = 4096;

/// e^(scale (x - most)) for x <= most, and 0 where that is not a normal number: what is impossible must not be drawn.
TESSERA_INLINE f32x16 weight(const f32x16& x, float most, float scale) {
  const f32x16 exponent = (x - most) * scale;
  return select(exponent > splat(lowest_exponent), exp_nonpositive_in_range(exponent), f32x16{});
}

struct Block {
  float largest = 0;  // NaN where any is
  double sum = 0;     // of weights beside the block's largest
  double factor = 0;  // which makes them weights beside the largest of all
};

Block block_of(const float* x, std::int64_t n, float scale) {
  const Maxima maxima = maxima_of(x, n);
  const float most = maxima.nan ? std::numeric_limits<float>::quiet_NaN() : maxima.largest();
  const float sum = fold(
      n, [&](std::int64_t i, auto count, f32x16& to) __attribute__((always_inline)) {
        const f32x16 w = weight(load(x + i, count), most, scale);
        to += is_whole<decltype(count)> ? w : select(lane_indexes() < count, w, f32x16{});
      });
  return {.largest = most, .sum = static_cast<double>(sum)};
}

/// The index of a block at which the running sum of weights goes beyond `target`. The sum was rounded in another order, so that it may
/// end below: then the last that is possible.
std::int64_t place_in_block(const float* x, std::int64_t n, float most, float scale, double target) {
  float weights[draw_block];
  for_vectors(0, n, [&](std::int64_t i, auto count) { store(weights + i, weight(load(x + i, count), most, scale), count); });
  std::int64_t place = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (weights[i] > 0) place = i;
    target -= static_cast<double>(weights[i]);
    if (target < 0) break;
  }
  return place;
}

struct Candidates {
  std::vector<std::int32_t> places;  // ascending
  std::vector<float> values;
};

/// Those of at least `enough`. Most pieces have none: a loop without branches, which becomes vectors, says so.
Candidates candidates_of(std::span<const float> x, float enough) {
  constexpr std::size_t piece = 64;
  Candidates c;
  for (std::size_t begin = 0; begin < x.size(); begin += piece) {
    const std::size_t end = std::min(x.size(), begin + piece);
    int some = 0;
    for (std::size_t i = begin; i < end; ++i) some |= x[i] >= enough;
    if (!some) continue;
    for (std::size_t i = begin; i < end; ++i)
      if (x[i] >= enough) c.places.push_back(static_cast<std::int32_t>(i)), c.values.push_back(x[i]);
  }
  return c;
}

}  // namespace

std::int32_t draw(std::span<const float> x, double temperature, double uniform) {
  TESSERA_REQUIRE(temperature > 0, "a temperature of {}", temperature);
  const auto n = static_cast<std::int64_t>(x.size());
  const auto scale = static_cast<float>(std::min(1 / temperature, static_cast<double>(std::numeric_limits<float>::max())));
  std::vector<Block> blocks(static_cast<std::size_t>(ceil_div(n, draw_block)));
  parallel_ranges(n, draw_block, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; at += draw_block)
      blocks[static_cast<std::size_t>(at / draw_block)] = block_of(x.data() + at, std::min(draw_block, end - at), scale);
  });
  float most = -std::numeric_limits<float>::infinity();
  for (const Block& b : blocks) {
    if (std::isnan(b.largest)) return -1;
    most = std::max(most, b.largest);
  }
  if (!std::isfinite(most)) return -1;

  double total = 0;
  for (Block& b : blocks) {
    if (b.sum > 0) b.factor = std::exp((static_cast<double>(b.largest) - static_cast<double>(most)) * static_cast<double>(scale));
    total += b.sum * b.factor;
  }
  double target = uniform * total, in_block = 0;
  std::size_t chosen = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Block& b = blocks[i];
    if (b.sum * b.factor <= 0) continue;  // of these, the last is taken where rounding leaves a rest
    chosen = i, in_block = target / b.factor;
    target -= b.sum * b.factor;
    if (target < 0) break;
  }
  const std::int64_t begin = static_cast<std::int64_t>(chosen) * draw_block;
  const std::int64_t place = place_in_block(x.data() + begin, std::min(draw_block, n - begin), blocks[chosen].largest, scale, in_block);
  return static_cast<std::int32_t>(begin + place);
}

std::vector<std::int32_t> largest(std::span<const float> x, std::int64_t k) {
  const auto n = static_cast<std::int64_t>(x.size());
  TESSERA_REQUIRE(k > 0 && k <= n, "the {} largest of {}", k, n);
  // Of disjoint parts, the k-th largest maximum is no larger than the k-th largest number: what is below it need not be looked at again.
  // Four parts for each of the k leave about k candidates. All of it takes one thread no longer than several take to meet.
  const std::int64_t piece = std::clamp(n * Maxima::parts / (4 * k), Maxima::parts, draw_block);
  std::vector<float> maxima(static_cast<std::size_t>(ceil_div(n, piece) * Maxima::parts));
  float* to = maxima.data();
  for (std::int64_t begin = 0; begin < n; begin += piece) {
    const Maxima m = maxima_of(x.data() + begin, std::min(piece, n - begin));
    if (m.nan) return {};
    for (const f32x16& chain : m.of) store(to, chain), to += lanes;
  }
  const auto kth = [k](std::vector<float>& of) {
    std::nth_element(of.begin(), of.begin() + (k - 1), of.end(), std::greater<>());
    return of[static_cast<std::size_t>(k - 1)];
  };
  Candidates candidates = candidates_of(x, kth(maxima));
  std::vector<float> ordered = candidates.values;
  const float bound = kth(ordered);
  std::int64_t equals = k - std::count_if(ordered.begin(), ordered.begin() + k, [&](float value) { return value > bound; });
  std::vector<std::int32_t> chosen;
  chosen.reserve(static_cast<std::size_t>(k));
  for (std::size_t i = 0; i < candidates.places.size(); ++i) {
    const float value = candidates.values[i];
    if (value > bound || (value == bound && equals-- > 0)) chosen.push_back(candidates.places[i]);
  }
  return chosen;
}

}  // namespace tessera::kernels
