// Passes over a row of logits that a map bends, for the host's loss of a whole row and of a slice. Each pass maps the logits again: a row
// keeps them as they are given, and what the gradient needs of them.
#pragma once
#include <cmath>

#include "kernels/cross_entropy/logit_map.hpp"
#include "kernels/cross_entropy/row_host.hpp"

namespace tessera::kernels::host {

struct MappedSums {
  float most = -std::numeric_limits<float>::max();
  double total = 0;  ///< of e^(mapped logit - most)
};

/// Blocks of terms are summed in fp32, and their sums in fp64, so that the error does not grow with n.
inline MappedSums sums_of_mapped(const float* x, std::int64_t n, const logit_map::Constants& map) {
  constexpr std::int64_t block = 1024;
  alignas(64) float mapped[block];
  MappedSums sums;
  for (std::int64_t first = 0; first < n; first += block) {
    const std::int64_t here = std::min(block, n - first);
    for_vectors(0, here,
                [&](std::int64_t i, auto count) { store(mapped + i, logit_map::mapped(load(x + first + i, count), map).value, count); });
    const float before = sums.most;
    sums.most = maximum_of(mapped, here, before);
    if (sums.most > before) sums.total *= std::exp(static_cast<double>(before) - static_cast<double>(sums.most));
    sums.total += static_cast<double>(exponentials_of<false>(mapped, here, sums.most));
  }
  return sums;
}

/// Of any sign: what is subnormal becomes zero.
inline f32x16 without_small(f32x16 v) {
  const f32x16 size = bits_as<f32x16>(bits_as<u32x16>(v) & 0x7fffffffu);
  return select(size >= splat(std::numeric_limits<float>::min()), v, f32x16{});
}

/// to = e^(mapped logit - most) * factor * slope; may be the logits.
template <class T>
void gradient_of_mapped(T* to, const float* x, std::int64_t n, const logit_map::Constants& map, float most, float factor) {
  for_vectors(0, n, [&](std::int64_t i, auto count) {
    const logit_map::Mapped<f32x16> at = logit_map::mapped(load(x + i, count), map);
    store(to + i, without_small(exp_nonpositive(at.value - most) * (at.slope * factor)), count);
  });
}

}  // namespace tessera::kernels::host
