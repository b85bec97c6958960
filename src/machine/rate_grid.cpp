#include "machine/rate_grid.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"

namespace tessera {
namespace {

/// The two neighbours of a size on an axis, and the share of the upper one.
struct Between {
  std::size_t below = 0, above = 0;
  double share = 0;
};

Between place_on(const std::vector<double>& axis, double size) {
  if (size <= axis.front()) return {};
  const std::size_t last = axis.size() - 1;
  if (size >= axis.back()) return {last, last, 0};
  const auto above = static_cast<std::size_t>(std::upper_bound(axis.begin(), axis.end(), size) - axis.begin());
  return {above - 1, above, std::log(size / axis[above - 1]) / std::log(axis[above] / axis[above - 1])};
}

}  // namespace

double RateGrid::seconds_per_unit(const std::vector<double>& at) const {
  TESSERA_REQUIRE(!rates.empty() && (rates.size() == 1 || at.size() == axes.size()), "{} sizes in a grid of {}", at.size(), axes.size());
  if (rates.size() == 1) return 1 / rates.front();
  std::vector<Between> places;
  for (std::size_t a = 0; a < axes.size(); ++a) places.push_back(place_on(axes[a], at[a]));
  double seconds = 0;
  for (std::size_t corner = 0; corner < (std::size_t{1} << axes.size()); ++corner) {
    double weight = 1;
    std::size_t index = 0;
    for (std::size_t a = 0; a < axes.size(); ++a) {
      const bool upper = (corner >> a & 1) != 0;
      weight *= upper ? places[a].share : 1 - places[a].share;
      index = index * axes[a].size() + (upper ? places[a].above : places[a].below);
    }
    if (weight > 0) seconds += weight / rates[index];
  }
  return seconds;
}

double RateGrid::fastest() const { return rates.empty() ? 0 : *std::max_element(rates.begin(), rates.end()); }

}  // namespace tessera
