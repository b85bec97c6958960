// What is tokenized: one input or several, in the order given.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/tokens/input_form.hpp"
#include "io/tokens/json_input.hpp"
#include "io/tokens/parquet_input.hpp"
#include "io/tokens/preference_form.hpp"
#include "io/tokens/text_input.hpp"
#include "io/tokens/tokens.hpp"

namespace tessera::io {

/// Every input is read twice, one after the other: the first time it is counted, the second time it must be what it was. Errors
/// (ExitCode::data) name the input: one that is not there or holds no text, and what its reader refuses.
class Inputs {
 public:
  /// Looks for all of `options.inputs` and at what they are, so that one which is wrong is found before any work; a pattern (* ? [ ])
  /// stands for the files that it meets, in the order of their bytes. `spool_folder`: TextInput.
  Inputs(const TokenizeOptions& options, const std::string& spool_folder);

  /// The name of the only one, or how many there are.
  const std::string& label() const { return label_; }
  /// Bytes of all files; 0 where one is a pipe.
  std::int64_t file_bytes() const;
  /// Of what the first scan found.
  std::int64_t text_bytes() const { return total_.bytes; }
  std::int64_t documents() const { return total_.documents; }
  /// Keys and columns that no document is made of.
  const std::vector<std::string>& unused() const { return unused_.names(); }
  /// With `preferences`, after the first scan.
  const PreferenceForm& preferences() const { return preferences_; }
  /// The first call counts, the second compares.
  void scan(const TextVisitor& visit);

 private:
  struct Count {
    std::int64_t bytes = 0, documents = 0;
    bool operator==(const Count&) const = default;
  };
  struct Input {
    std::string path;
    std::int64_t file_bytes = 0;
    bool piped = false;
    InputForm form = InputForm::text;           ///< of a pipe from the first scan on
    std::unique_ptr<TextInput> pipe = nullptr;  ///< from the first scan on: it gives its bytes once
    Count count = {};
  };
  void add(const std::string& path);
  InputForm look_at_form(TextInput& text) const;
  void scan_one(Input& input, const TextVisitor& visit);
  const TokenizeOptions& options_;
  std::string spool_folder_, label_;
  std::vector<Input> inputs_;
  UnusedKeys unused_;
  PreferenceForm preferences_;
  ParquetReader parquet_;
  Count total_;
  bool counted_ = false;
};

}  // namespace tessera::io
