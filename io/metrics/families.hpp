// Figures as Prometheus has them: families of samples that differ by their labels.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera::io {

enum class FamilyType : std::uint8_t { gauge, counter, histogram };

/// How many observations were at most each bound.
class Histogram {
 public:
  Histogram() = default;
  /// `bounds` ascend; what is above the last one is counted too.
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size()) {}
  void add(double value) {
    for (std::size_t i = bounds_.size(); i-- > 0 && value <= bounds_[i];) ++counts_[i];
    ++count_, sum_ += value;
  }
  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<std::uint64_t>& counts() const { return counts_; }
  std::uint64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<std::uint64_t> counts_;  ///< of each bound those that are at most it
  std::uint64_t count_ = 0;
  double sum_ = 0;
};

struct FamilySample {
  std::vector<std::pair<std::string, std::string>> labels = {};
  double value = 0;          ///< of a gauge or a counter
  Histogram histogram = {};  ///< of a histogram
};

struct Family {
  std::string name, help;
  FamilyType type = FamilyType::gauge;
  std::vector<FamilySample> samples = {};
};
using Families = std::vector<Family>;

}  // namespace tessera::io
