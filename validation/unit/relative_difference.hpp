// How far logits lie apart.
#pragma once
#include <cmath>
#include <limits>
#include <span>

namespace tessera::test {

/// |a - b| / |b| (2-norms); infinite where they differ in length or a value is NaN.
inline double relative_difference(std::span<const float> a, std::span<const float> b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    size += static_cast<double>(b[i]) * b[i];
  }
  const double result = std::sqrt(difference / size);
  return a.size() == b.size() && !std::isnan(result) ? result : std::numeric_limits<double>::infinity();
}

}  // namespace tessera::test
