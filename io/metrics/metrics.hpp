// metrics.jsonl: one JSON object a line. Doubles are written with the fewest digits that read back to the same bits; infinities and NaN,
// which JSON does not have, as null.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::io {

using NamedNumbers = std::vector<std::pair<std::string, double>>;  ///< a JSON object, of names that differ
using MetricValue = std::variant<std::int64_t, double, std::string, std::vector<std::int64_t>, NamedNumbers>;
using MetricRow = std::vector<std::pair<std::string, MetricValue>>;  // keys in the order they are written

/// Appends rows to PATH; every row is one write followed by a flush to the system, so a kill loses at most the row under way.
/// Where somebody moves, removes or replaces the file meanwhile, it is written anew with all its rows, and that is said once; a file that
/// took its place is kept as PATH.old-N. The folder must be there. On opening an existing file for a resume at `first_step`, rows whose
/// "step" is >= first_step and a torn last line are cut off.
class MetricsFile {
 public:
  MetricsFile(const std::string& path, std::int64_t first_step);
  ~MetricsFile();
  void write(const MetricRow& row);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::io
