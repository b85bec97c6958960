#include "deck/nearest.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

namespace tessera {

std::vector<std::int64_t> divisors_near(std::int64_t n, std::int64_t near, std::size_t count) {
  std::vector<std::int64_t> all;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    all.push_back(d);
    if (d != n / d) all.push_back(n / d);
  }
  std::stable_sort(all.begin(), all.end(), [&](auto a, auto b) { return std::abs(a - near) < std::abs(b - near); });
  if (all.size() > count) all.resize(count);
  std::sort(all.begin(), all.end());
  return all;
}

std::string one_of(const std::vector<std::int64_t>& values) {
  if (values.size() == 1) return fmt::format("{}", values[0]);
  return fmt::format("{} or {}", fmt::join(values.begin(), values.end() - 1, ", "), values.back());
}

std::string multiples_around(std::int64_t value, std::int64_t atom) {
  std::int64_t below = value / atom * atom;
  return below > 0 ? fmt::format("{} or {}", below, below + atom) : fmt::format("{}", atom);
}

}  // namespace tessera
