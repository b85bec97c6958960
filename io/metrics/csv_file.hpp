// Rows as a table that spreadsheets and data frames open.
#pragma once
#include "io/files/posix_file.hpp"
#include "io/metrics/sink.hpp"

namespace tessera::io {

/// PATH: a line of column names, then a line a row that has any of them beside the first two, which say when, RFC 4180. A cell that a row
/// has no number for is empty. Doubles have the fewest digits that read back to the same bits.
class CsvFile : public MetricsSink {
 public:
  /// In place of what has the name, with the rows of `history`, a metrics.jsonl.
  CsvFile(const std::string& path, std::vector<std::string> columns, const std::string& history);
  void write(const MetricRow& row) override;

 private:
  std::string line_of(const MetricRow& row) const;
  std::vector<std::string> columns_;
  PosixFile file_;
  std::int64_t end_ = 0;
};

}  // namespace tessera::io
