// What an input of `tessera tokenize` is, by its bytes: its name is a hint where they leave a choice.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace tessera::io {

/// A byte order mark may stand at the beginning of UTF-8 and is no part of the text.
constexpr std::string_view utf8_mark = "\xef\xbb\xbf";

bool ends_with_any(const std::string& path, std::initializer_list<std::string_view> endings);

enum class InputForm : std::uint8_t {
  text,     ///< one document
  lines,    ///< objects of JSON, one a line
  json,     ///< an array of objects of JSON, or objects one after the other, however they are laid out
  parquet,  ///< rows
};

/// How an input begins.
struct InputHead {
  std::string path;        ///< "-" for standard input
  std::string name;        ///< for messages
  std::string_view bytes;  ///< a MiB, without utf8_mark
  bool whole = false;      ///< they are all of it
  bool piped = false;
};

/// `format`: of TokenizeOptions. `documents`: text is none, since the command takes conversations or a key. Errors (ExitCode::data, and
/// ExitCode::usage for Parquet from a pipe): bytes of another format, by its name and with what to do; bytes that leave a choice or belie
/// the name, with the --format that decides.
InputForm form_of(const InputHead& head, const std::string& format, bool documents);

/// Error(usage). `name`: of a pipe.
[[noreturn]] void refuse_piped_parquet(const std::string& name);

/// "zcat a.gz | tessera tokenize - FOLDER": the command that gives an input through `program`; of a pipe, in words.
std::string passed_through(const InputHead& head, const std::string& program);

}  // namespace tessera::io
