// The largest of many numbers on the host, and whether any is NaN.
#pragma once
#include <limits>

#include "kernels/vector/vector.hpp"

namespace tessera::kernels {

/// Maxima of disjoint parts of some numbers, a part for each lane; four chains hide the latency of the comparisons. NaN is in none.
struct Maxima {
  static constexpr std::int64_t parts = 4 * lanes;
  f32x16 of[4];
  bool nan;

  float largest() const { return horizontal_max(max(max(of[0], of[1]), max(of[2], of[3]))); }
};

inline Maxima maxima_of(const float* x, std::int64_t n) {
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  f32x16 a = splat(lowest), b = a, c = a, d = a;
  i32x16 nan = 0;
  const auto take = [&](f32x16 & most, const f32x16& v) __attribute__((always_inline)) {
    most = max(v, most);  // which is `most` where v is NaN
    nan = nan | (v != v);
  };
  std::int64_t i = 0;
  for (; i + Maxima::parts <= n; i += Maxima::parts)
    take(a, load(x + i)), take(b, load(x + i + lanes)), take(c, load(x + i + 2 * lanes)), take(d, load(x + i + 3 * lanes));
  for_vectors(i, n, [&](std::int64_t j, auto count) { take(a, select(lane_indexes() < count, load(x + j, count), splat(lowest))); });
  std::int32_t any = 0;
  for (int lane = 0; lane < lanes; ++lane) any |= nan[lane];
  return {{a, b, c, d}, any != 0};
}

}  // namespace tessera::kernels
