// Bound by the arithmetic of Philox: sixteen counters at a time, which draw for 64 features.
#include "kernels/dropout/dropout.hpp"

#include "base/check.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {
namespace {

constexpr std::int64_t features = 4 * lanes;

/// Factors of the 64 features from 4 `group` on.
void factors_of(float* factors, const DropoutDraw& draw, std::uint32_t group, std::uint32_t stream, std::int64_t token) {
  u32x16 counter[4];
  draw.words(counter, bits_as<u32x16>(lane_indexes()) + group, stream, token);
  std::uint32_t words[4][lanes];
  for (int j = 0; j < 4; ++j) std::memcpy(words[j], &counter[j], sizeof words[j]);
  for (std::int64_t lane = 0; lane < lanes; ++lane)
    for (int j = 0; j < 4; ++j) factors[4 * lane + j] = words[j][lane] < draw.below ? 0.0f : draw.scale;
}

template <class T>
void drop_row(const Dropout& p, const DropoutDraw& draw, std::int64_t m) {
  T* y = static_cast<T*>(p.y) + m * p.N;
  const T* x = static_cast<const T*>(p.x) + m * p.N;
  float factors[features];
  std::fill_n(factors, features, 1.0f);
  const std::int64_t skipped = p.first % 4;  // of the first counter
  for (std::int64_t begin = -skipped; begin < p.N; begin += features) {
    if (p.tokens[m] >= 0) factors_of(factors, draw, static_cast<std::uint32_t>((p.first + begin) / 4), p.stream, p.tokens[m]);
    for_vectors(std::max<std::int64_t>(begin, 0), std::min(begin + features, p.N), [&](std::int64_t i, auto count) {
      const f32x16 factor = load(factors + (i - begin), count), value = load(x + i, count);
      store(y + i, p.accumulate ? fma(factor, value, load(y + i, count)) : factor * value, count);
    });
  }
}

}  // namespace

void dropout(const Context&, const Dropout& p) {
  TESSERA_REQUIRE(p.rate >= 0 && p.rate < 1, "dropout of a share of {}", p.rate);
  const DropoutDraw draw(p);
  with_float_type(p.dtype, "dropout", [&](auto type) {
    parallel_ranges(p.M, std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(p.N, 1)), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t m = begin; m < end; ++m) drop_row<decltype(type)>(p, draw, m);
    });
  });
}

}  // namespace tessera::kernels::host
