// Rows of Parquet files as documents, read by pyarrow in a process of Python (parquet.py).
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "io/tokens/text_input.hpp"

namespace tessera::io {

class Child;

/// Reads files one after the other, each row group by row group. Errors: Error(data) names file, column and row; Error(environment): Python
/// or the package is missing, or its process ended.
class ParquetReader {
 public:
  /// `field` names the column; "": "text", or "prompt" and "completion", and with `chat` those of scan_objects' conversations. `memory`:
  /// bytes that the process may take; 0: any.
  ParquetReader(std::string python, std::string field, bool chat, std::int64_t memory);
  ~ParquetReader();
  /// A row is a document as a line is in scan_lines, or with `chat` in scan_objects. Starts the process with the first file.
  void scan(const std::string& path, const TextVisitor& visit);

 private:
  void scan_rows(const std::string& path, const TextVisitor& visit);
  std::string python_, field_;
  bool chat_;
  std::int64_t memory_;
  std::unique_ptr<Child> child_;
};

}  // namespace tessera::io
