#include "io/tokens/text_input.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.hpp"
#include "base/log.hpp"
#include "base/types.hpp"
#include "io/tokens/utf8.hpp"

namespace tessera::io {
namespace {

constexpr std::size_t piece_bytes = 1 << 20;
constexpr std::size_t longest_line = std::size_t{256} << 20;  // a line is held in memory, so that something has to end it
constexpr std::string_view wanted = "Every line must be an object with a string \"text\", or with strings \"prompt\" and \"completion\".";

[[noreturn]] void refuse_utf8(const std::string& name, const Utf8Fault& f) {
  fail(ExitCode::data, "{}:{}: not UTF-8 at byte offset {}: {}. Convert the file, for example with iconv -t UTF-8.", name, f.line, f.offset,
       f.cut ? std::string("the text ends inside a character") : fmt::format("byte 0x{:02x} cannot stand here", f.byte));
}

/// The library's reason without its own name, and not longer than a line.
std::string reason_of(const nlohmann::json::exception& error) {
  std::string text = error.what();
  if (const auto end = text.find("] "); text.starts_with("[json") && end != std::string::npos) text.erase(0, end + 2);
  if (text.size() > 120) text = text.substr(0, 120) + " ...";
  return text;
}

struct LineText {
  std::string prompt, text;
};

nlohmann::json parse_object(const std::string& name, std::int64_t line_number, const std::string& line, std::string_view advice) {
  try {
    auto object = nlohmann::json::parse(line);
    if (!object.is_object()) fail(ExitCode::data, "{}:{}: the line is no JSON object. {}", name, line_number, advice);
    return object;
  } catch (const nlohmann::json::parse_error& e) {
    fail(ExitCode::data, "{}:{}: broken JSON at byte {} of the line. {}", name, line_number, e.byte, advice);
  } catch (const nlohmann::json::exception& e) {
    fail(ExitCode::data, "{}:{}: JSON that cannot be read: {}. {}", name, line_number, reason_of(e), advice);
  }
}

/// The text of one line of JSON, with what stands before it and does not count.
LineText text_of_line(const std::string& name, std::int64_t line_number, const std::string& line, const std::string& field) {
  const std::string advice = field.empty() ? std::string(wanted) : fmt::format("Every line must be an object with a string \"{}\".", field);
  auto object = parse_object(name, line_number, line, advice);
  const auto take = [&](const std::string& key) {
    const auto text = object.find(key);
    if (text == object.end()) fail(ExitCode::data, "{}:{}: the object has no \"{}\". {}", name, line_number, key, advice);
    if (!text->is_string()) fail(ExitCode::data, "{}:{}: \"{}\" is no string. {}", name, line_number, key, advice);
    return std::move(text->get_ref<std::string&>());
  };
  if (!field.empty()) return {.prompt = "", .text = take(field)};
  if (!object.contains("prompt") && !object.contains("completion")) return {.prompt = "", .text = take("text")};
  if (object.contains("text"))
    fail(ExitCode::data, "{}:{}: the object has a \"text\" beside a \"prompt\" or \"completion\". {} Or say which: --field text.", name,
         line_number, advice);
  LineText both{.prompt = take("prompt"), .text = take("completion")};
  if (both.text.empty())
    fail(ExitCode::data, "{}:{}: \"completion\" is empty, so there is nothing to learn. Remove the line.", name, line_number);
  return both;
}

using LineVisitor = std::function<void(std::int64_t number, const std::string& line)>;

/// Each line that is not blank, checked to be UTF-8.
void scan_each_line(TextInput& input, const TextVisitor& visit, const LineVisitor& take) {
  std::string line;
  std::int64_t number = 1, offset = 0;  // of the line under way
  auto take_line = [&] {
    Utf8Checker checker;
    auto fault = checker.feed(line);
    if (!fault) fault = checker.finish();
    if (fault) refuse_utf8(input.name(), {number, offset + fault->offset, fault->byte, fault->cut});
    if (line.find_first_not_of(" \t\r") != std::string::npos) take(number, line);
    offset += static_cast<std::int64_t>(line.size()) + 1, ++number;
    line.clear();
  };
  for (auto piece = input.next(); !piece.empty(); piece = input.next()) {
    visit.progress(static_cast<std::int64_t>(piece.size()));
    for (auto end = piece.find('\n'); end != piece.npos; end = piece.find('\n')) {
      line.append(piece.substr(0, end));
      piece.remove_prefix(end + 1);
      take_line();
    }
    line.append(piece);
    if (line.size() > longest_line)
      fail(ExitCode::data, "{}:{}: the line does not end within {}: this is no file of JSON lines. {}", input.name(), number,
           human_bytes(static_cast<double>(longest_line)), wanted);
  }
  if (!line.empty()) take_line();
}

}  // namespace

TextInput::TextInput(const std::string& path, const std::string& spool_folder) : buffer_(piece_bytes) {
  std::error_code ignored;  // what cannot be looked at cannot be opened either, and that says why
  if (path != "-" && std::filesystem::is_fifo(path, ignored))
    info("{}: this is a pipe; what comes is read once something writes to it", path);
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

std::string_view TextInput::next() {
  std::size_t n = 0;
  if (piped_ && !again_) {
    n = source_.read_next(buffer_.data(), buffer_.size());
    spool_.write(at_, buffer_.data(), n);
  } else {
    n = (piped_ ? spool_ : source_).read(at_, buffer_.data(), buffer_.size());
  }
  at_ += static_cast<std::int64_t>(n);
  return {buffer_.data(), n};
}

void TextInput::rewind() { at_ = 0, again_ = true; }

void scan_text(TextInput& input, const TextVisitor& visit) {
  visit.place(input.name());
  Utf8Checker checker;
  for (auto piece = input.next(); !piece.empty(); piece = input.next()) {
    if (auto fault = checker.feed(piece)) refuse_utf8(input.name(), *fault);
    visit.text(piece, true);
    visit.progress(static_cast<std::int64_t>(piece.size()));
  }
  if (auto fault = checker.finish()) refuse_utf8(input.name(), *fault);
  visit.end_document();
}

void scan_lines(TextInput& input, const std::string& field, const TextVisitor& visit) {
  scan_each_line(input, visit, [&](std::int64_t number, const std::string& line) {
    const LineText line_text = text_of_line(input.name(), number, line, field);
    if (line_text.text.empty()) return;
    visit.place(fmt::format("{}:{}", input.name(), number));
    if (!line_text.prompt.empty()) visit.text(line_text.prompt, false);
    visit.text(line_text.text, true), visit.end_document();
  });
}

void scan_objects(TextInput& input, const TextVisitor& visit) {
  scan_each_line(input, visit, [&](std::int64_t number, const std::string& line) {
    parse_object(input.name(), number, line, "Every line must be a conversation.");
    visit.place(fmt::format("{}:{}", input.name(), number));
    visit.text(line, true), visit.end_document();
  });
}

}  // namespace tessera::io
