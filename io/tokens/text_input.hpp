// Text to be tokenized: where it comes from, and how it falls into documents.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/files/posix_file.hpp"
#include "io/files/utf8.hpp"
#include "io/tokens/input_form.hpp"

namespace tessera::io {

/// Text that is read from front to back, twice. A pipe gives it once: meanwhile it goes to a file without a name, which the second time
/// reads. A byte order mark of UTF-8 at its beginning is left out.
class TextInput {
 public:
  /// `path` is a file, a pipe or "-" for standard input; anything else is an Error(data). A pipe's copy lies on the disk of `spool_folder`.
  TextInput(const std::string& path, const std::string& spool_folder);
  const std::string& name() const { return source_.path(); }
  /// 0 where it is a pipe.
  std::int64_t size() const { return size_; }
  /// How it begins, before the first next(): a MiB of it, or all. `form_of` says what it is.
  InputHead head();
  /// The next piece, good until the next call; empty at the end.
  std::string_view next();
  void rewind();
  /// Bytes of the mark that was left out.
  std::int64_t mark_bytes() const { return mark_; }

 private:
  std::string_view fill();
  PosixFile source_, spool_;
  std::int64_t size_ = 0, at_ = 0, mark_ = 0;
  bool piped_ = false, again_ = false, ended_ = false;
  std::optional<std::string_view> ahead_;  ///< what head() has read
  std::vector<char> buffer_;
};

struct TextVisitor {
  std::function<void(std::string_view, bool counts)> text;  ///< a piece of the document under way; whether it counts in the loss
  std::function<void()> end_document;
  std::function<void(std::string)> place;      ///< where a document stands, for messages, before its text: "a.txt", "a.jsonl:3"
  std::function<void(std::int64_t)> progress;  ///< bytes of input consumed
};

/// All of it is one document. Errors (ExitCode::data) name line and byte.
void scan_text(TextInput& input, const TextVisitor& visit);
[[noreturn]] void refuse_utf8(const TextInput& input, const Utf8Fault& fault);

}  // namespace tessera::io
