#include "train/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/elementwise/elementwise.hpp"
#include "kernels/parallel.hpp"

namespace tessera {
namespace {

/// The `k` largest, in descending order.
std::vector<std::int32_t> largest(std::span<const float> logits, std::size_t k) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), order.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  order.resize(k);
  return order;
}

}  // namespace

std::int32_t sample_token(std::span<const float> logits, double temperature, std::int64_t top_k, std::uint64_t seed,
                          std::int64_t position) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0) return static_cast<std::int32_t>(likeliest - logits.begin());
  // Where all are considered they need no order: sorting a vocabulary takes a hundred times as long as a GPU takes for the next token.
  const bool some = top_k > 0 && static_cast<std::size_t>(top_k) < logits.size();
  const std::vector<std::int32_t> order = some ? largest(logits, static_cast<std::size_t>(top_k)) : std::vector<std::int32_t>();
  std::vector<double> cumulative(some ? order.size() : logits.size());
  kernels::parallel_ranges(static_cast<std::int64_t>(cumulative.size()), 4096, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
      cumulative[i] = std::exp((static_cast<double>(logits[some ? static_cast<std::size_t>(order[i]) : i]) - *likeliest) / temperature);
  });
  std::partial_sum(cumulative.begin(), cumulative.end(), cumulative.begin());
  const double uniform = static_cast<double>(kernels::counter_random(seed, 0x67656e, static_cast<std::uint64_t>(position)) >> 11) * 0x1p-53;
  const auto above = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * cumulative.back());
  const auto at = static_cast<std::size_t>(std::min(above, cumulative.end() - 1) - cumulative.begin());
  return some ? order[at] : static_cast<std::int32_t>(at);
}

}  // namespace tessera
