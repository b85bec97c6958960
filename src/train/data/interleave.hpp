// Which file of a mixture gives which sample of a run.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

/// Weights as whole numbers without a common divisor: exactly their ratios where they are decimals of few digits, else ratios to a
/// millionth of their sum. Each weight is above 0; one of less than a millionth of all counts as a millionth.
std::vector<std::int64_t> whole_shares(std::span<const double> weights);

/// Samples of several sources one after the other, so that among the first n samples, for every n, each source has its share of n, rounded
/// down or up. Sample j of a source that has w of W slots takes a slot from floor(jW/w) on and before ceil((j+1)W/w), and of the samples
/// that may take a slot the one with the earliest end takes it (Baruah, Cohen, Plaxton and Varvel, Proportionate progress, Algorithmica
/// 1996). Ends are never missed: no more samples have to lie between two slots than there are slots. The order repeats after W samples, so
/// any place of it is found at once.
class Interleave {
 public:
  struct Place {
    int source = 0;
    std::int64_t number = 0;  ///< among the samples of its source
  };
  /// Sources with shares above 0, fewer than 2^31 together.
  explicit Interleave(std::vector<std::int64_t> shares);
  /// Sample `cursor`.
  Place at(std::int64_t cursor) const;
  /// Samples of `source` among the first `cursor` ones.
  std::int64_t count(int source, std::int64_t cursor) const;
  const std::vector<std::int64_t>& shares() const { return shares_; }
  std::int64_t period() const { return static_cast<std::int64_t>(source_.size()); }

 private:
  std::vector<std::int64_t> shares_;
  std::vector<std::int32_t> source_;              ///< of each slot of a period
  std::vector<std::vector<std::int32_t>> slots_;  ///< of each source, rising
};

}  // namespace tessera
