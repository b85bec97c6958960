// metrics.jsonl: one JSON object a line. Doubles are written with the fewest digits that read back to the same bits; infinities and NaN,
// which JSON does not have, as null.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "io/metrics/line_file.hpp"

namespace tessera::io {

using NamedNumbers = std::vector<std::pair<std::string, double>>;  ///< a JSON object, of names that differ
using MetricValue = std::variant<std::int64_t, double, std::string, std::vector<std::int64_t>, NamedNumbers>;
using MetricRow = std::vector<std::pair<std::string, MetricValue>>;  // keys in the order they are written

/// None where the row has no such number. A double that is whole may have been read as an integer.
std::optional<double> row_number(const MetricRow& row, std::string_view key);

/// As it stands in the file, with its end.
std::string line_of(const MetricRow& row);

/// Adds rows to a file; see LineFile. On opening an existing file for a resume at `first_step`, rows whose "step" is >= first_step and a
/// torn last line are cut off, and lines that are no rows go to PATH.damaged, with a warning.
class MetricsFile {
 public:
  MetricsFile(const std::string& path, std::int64_t first_step);
  void write(const MetricRow& row);

 private:
  LineFile file_;
};

}  // namespace tessera::io
