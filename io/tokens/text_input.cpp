#include "io/tokens/text_input.hpp"

#include <filesystem>

#include "base/check.hpp"
#include "base/log.hpp"

namespace tessera::io {
namespace {

constexpr std::size_t piece_bytes = 1 << 20;

}  // namespace

void refuse_utf8(const TextInput& input, const Utf8Fault& f) {
  fail(ExitCode::data, "{}:{}: not UTF-8 at byte offset {}: {}. Convert the file, for example with iconv -t UTF-8.", input.name(), f.line,
       input.mark_bytes() + f.offset,
       f.cut ? std::string("the text ends inside a character") : fmt::format("byte 0x{:02x} is not allowed here", f.byte));
}

TextInput::TextInput(const std::string& path, const std::string& spool_folder) : buffer_(piece_bytes) {
  std::error_code ignored;  // what cannot be looked at cannot be opened either, and that says why
  if (path != "-" && std::filesystem::is_fifo(path, ignored)) info("{}: this is a pipe; it is read when something writes to it", path);
  source_ = PosixFile::open_stream(path, ExitCode::data);
  const char* other = source_.other_than_regular();
  const std::string_view kind = other ? other : "file";
  if (kind == "folder" || kind == "device")
    fail(ExitCode::data, "{}: this is a {}. Give a file with text, a pipe, or - for standard input.", name(), kind);
  piped_ = other || path == "-";  // standard input may begin in the middle of a file
  if (piped_)
    spool_ = PosixFile::unnamed(spool_folder);
  else
    size_ = source_.size();
}

std::string_view TextInput::fill() {
  std::size_t n = 0;
  if (piped_ && !again_) {
    while (!ended_ && n < buffer_.size()) {
      const std::size_t more = source_.read_next(buffer_.data() + n, buffer_.size() - n);
      spool_.write(at_ + static_cast<std::int64_t>(n), buffer_.data() + n, more);
      ended_ = more == 0, n += more;
    }
  } else {
    n = (piped_ ? spool_ : source_).read(at_, buffer_.data(), buffer_.size());
  }
  std::string_view piece(buffer_.data(), n);
  if (at_ == 0 && piece.starts_with(utf8_mark)) mark_ = utf8_mark.size(), piece.remove_prefix(utf8_mark.size());
  at_ += static_cast<std::int64_t>(n);
  return piece;
}

InputHead TextInput::head() {
  ahead_ = fill();
  return {
      .path = source_.path(), .name = name(), .bytes = *ahead_, .whole = static_cast<std::size_t>(at_) < buffer_.size(), .piped = piped_};
}

std::string_view TextInput::next() {
  if (!ahead_) return fill();
  const std::string_view piece = *ahead_;
  ahead_.reset();
  return piece;
}

void TextInput::rewind() { at_ = 0, again_ = true; }

void scan_text(TextInput& input, const TextVisitor& visit) {
  visit.place(input.name());
  Utf8Checker checker;
  for (auto piece = input.next(); !piece.empty(); piece = input.next()) {
    if (auto fault = checker.feed(piece)) refuse_utf8(input, *fault);
    visit.text(piece, true);
    visit.progress(static_cast<std::int64_t>(piece.size()));
  }
  if (auto fault = checker.finish()) refuse_utf8(input, *fault);
  visit.end_document();
}

}  // namespace tessera::io
