// Text to be tokenized: where it comes from, and how it falls into documents.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/files/posix_file.hpp"

namespace tessera::io {

/// Text that is read from front to back, twice. A pipe gives it once: meanwhile it goes to a file without a name, which the second time
/// reads.
class TextInput {
 public:
  /// `path` is a file, a pipe or "-" for standard input; anything else is an Error(data). A pipe's copy lies on the disk of `spool_folder`.
  TextInput(const std::string& path, const std::string& spool_folder);
  const std::string& name() const { return source_.path(); }
  /// 0 where it is a pipe.
  std::int64_t size() const { return size_; }
  /// The next piece, good until the next call; empty at the end.
  std::string_view next();
  void rewind();

 private:
  PosixFile source_, spool_;
  std::int64_t size_ = 0, at_ = 0;
  bool piped_ = false, again_ = false;
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
/// JSON lines: what each has under the key `field` is a document. Where that is "": its "text", or its "prompt", which does not count in
/// the loss, with its "completion", which does. Blank lines and empty texts hold no tokens and are passed over. Errors (ExitCode::data)
/// name the line.
void scan_lines(TextInput& input, const std::string& field, const TextVisitor& visit);
/// JSON lines as they stand, each a document. Errors (ExitCode::data) name a line that is no JSON object.
void scan_objects(TextInput& input, const TextVisitor& visit);

}  // namespace tessera::io
