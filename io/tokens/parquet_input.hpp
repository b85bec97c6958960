// Rows of Parquet files as documents, read by pyarrow in a process of Python (parquet.py).
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "io/tokens/json_input.hpp"
#include "io/tokens/preference_form.hpp"
#include "io/tokens/text_input.hpp"
#include "io/tokens/tokens.hpp"

namespace tessera::io {

class Child;

/// Reads files one after the other, each row group by row group. Errors: Error(data) names file, column and row; Error(environment): Python
/// or the package is missing, or its process ended.
class ParquetReader {
 public:
  /// `options`: `field` names the column; "": "text", or "prompt" and "completion", and with `chat` those of conversations. `unused` hears
  /// of the columns that no document is made of, and `preferences` of each row where the options ask for them. All outlive it.
  ParquetReader(const TokenizeOptions& options, UnusedKeys& unused, PreferenceForm& preferences);
  ~ParquetReader();
  /// A row is a document as a line is in scan_lines. Starts the process with the first file.
  void scan(const std::string& path, const TextVisitor& visit);

 private:
  void look_at_preference(const std::string& place, std::string_view row);
  void scan_rows(const std::string& path, const TextVisitor& visit);
  const TokenizeOptions& options_;
  UnusedKeys& unused_;
  PreferenceForm& preferences_;
  std::unique_ptr<Child> child_;
};

}  // namespace tessera::io
