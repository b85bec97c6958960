#include "zero/longest_first.hpp"

#include <algorithm>
#include <numeric>

namespace tessera {

std::vector<int> longest_first(std::span<const double> costs, int members) {
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](std::size_t i) { return costs[i]; });
  std::vector<int> member(costs.size());
  std::vector<double> load(static_cast<std::size_t>(members));
  for (const std::size_t i : order) {
    const auto least = std::ranges::min_element(load);
    *least += costs[i];
    member[i] = static_cast<int>(least - load.begin());
  }
  return member;
}

}  // namespace tessera
