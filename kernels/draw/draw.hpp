// Drawing one of many numbers by their softmax, for a token of its logits. On the host alone: from a GPU the logits cross, some hundred
// kilobytes a token.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::kernels {

/// The index i with probability e^(x[i] / temperature) over the sum of these, where `uniform` is drawn from [0, 1); -1 where any x is NaN
/// or the largest is infinite or there is none. temperature > 0. Depends on nothing else: no bit on the number of threads.
std::int32_t draw(std::span<const float> x, double temperature, double uniform);

/// Indexes of the k largest in ascending order, of equals those that come first. Empty where any x is NaN. 0 < k <= x.size().
std::vector<std::int32_t> largest(std::span<const float> x, std::int64_t k);

}  // namespace tessera::kernels
