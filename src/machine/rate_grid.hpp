// How fast something goes, by its size.
#pragma once
#include <vector>

namespace tessera {

/// A rate at each point of a grid of sizes. Between points the time of a unit of work is interpolated over the logarithms of the sizes;
/// beyond the grid its border counts. So no answer exceeds the fastest point, and a faster point makes no answer slower.
struct RateGrid {
  std::vector<std::vector<double>> axes;  ///< sizes, each axis rising
  std::vector<double> rates;              ///< a second; the last axis runs fastest. A single one counts for all sizes

  bool empty() const { return rates.empty(); }
  /// Of one unit of work (a FLOP, a byte) at these sizes, one an axis.
  double seconds_per_unit(const std::vector<double>& at) const;
  double fastest() const;
};

}  // namespace tessera
