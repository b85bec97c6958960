// Rows of a long run as few as a screen has pixels: of each bucket of rows the least, the mean and the most of every column, so that no
// spike is lost.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/json.hpp"

namespace tessera {

/// Of so many rows: where each bucket ends. They have the same number of rows, but for one.
std::vector<std::size_t> bucket_ends(std::size_t rows, std::size_t most_buckets);

/// A column over buckets; NaN for one without finite values. `geometric`: the mean is that of logarithms, where all values are positive:
/// on a scale of logarithms the other one draws a spike as wide as its bucket.
struct ReducedColumn {
  std::vector<double> low, mean, high;
};
ReducedColumn reduce_column(std::span<const double> column, std::span<const std::size_t> ends, bool geometric = false);

/// Numbers with `digits` significant digits, as few characters as that takes; null for what is no number.
std::string number_list(std::span<const double> numbers, int digits = 6);

}  // namespace tessera
