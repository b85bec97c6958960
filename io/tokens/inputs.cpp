#include "io/tokens/inputs.hpp"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/check.hpp"
#include "io/files/path_state.hpp"

namespace tessera::io {
namespace {

namespace fs = std::filesystem;

/// The files that a pattern stands for; the path itself where it is no pattern, or is a file's name for all that.
std::vector<std::string> files_of(const std::string& path) {
  if (path == "-" || path.find_first_of("*?[") == path.npos || !look_at(path).nothing()) return {path};
  glob_t found{};
  const int fault = glob(path.c_str(), GLOB_ERR, nullptr, &found);
  const std::vector<std::string> files(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  if (fault != 0 && fault != GLOB_NOMATCH)
    fail(ExitCode::data, "{}: a folder of this pattern cannot be read. Give the files by their names.", path);
  if (files.empty()) fail(ExitCode::data, "{}: no file has this name or matches this pattern.", path);
  return files;
}

std::string name_of(const std::string& path) { return path == "-" ? "standard input" : path; }

}  // namespace

Inputs::Inputs(const TokenizeOptions& options, const std::string& spool_folder)
    : options_(options), spool_folder_(spool_folder), preferences_(options.ignored), parquet_(options, unused_, preferences_) {
  if (options.inputs.empty()) fail(ExitCode::usage, "there is no INPUT. Name at least one.");
  if (std::ranges::count(options.inputs, "-") > 1)
    fail(ExitCode::usage, "- is among the inputs more than once, but standard input can be read only once. Name it once.");
  for (const std::string& path : options.inputs)
    for (const std::string& file : files_of(path)) add(file);
  label_ = inputs_.size() == 1 ? name_of(inputs_[0].path) : fmt::format("{} inputs", inputs_.size());
}

void Inputs::add(const std::string& path) {
  std::error_code ignored;  // what cannot be looked at cannot be opened either, and that says why
  const bool pipe = path == "-" || fs::is_fifo(path, ignored);
  if (pipe && options_.format == "parquet") refuse_piped_parquet(name_of(path));
  // A pipe is opened when its turn comes: who writes into several one after the other would wait for ever.
  if (pipe) return void(inputs_.push_back({.path = path, .piped = true}));
  TextInput text(path, spool_folder_);
  inputs_.push_back({.path = path, .file_bytes = text.size(), .form = look_at_form(text)});
}

InputForm Inputs::look_at_form(TextInput& text) const {
  const InputForm form = form_of(text.head(), options_.format, options_.chat || options_.preferences || !options_.field.empty());
  if (options_.document == 0) return form;
  if (form == InputForm::parquet || options_.format == "text" || options_.format == "jsonl")
    fail(ExitCode::data, "{}: --document takes one of several JSON documents in a file, but this is {}. Leave it out.", text.name(),
         form == InputForm::parquet ? "Parquet" : fmt::format("read as {}", options_.format));
  return InputForm::json;  // lines of JSON are documents too
}

std::int64_t Inputs::file_bytes() const {
  std::int64_t bytes = 0;
  for (const Input& input : inputs_) {
    if (input.piped) return 0;
    bytes += input.file_bytes;
  }
  return bytes;
}

void Inputs::scan_one(Input& input, const TextVisitor& visit) {
  if (input.form == InputForm::parquet) {
    if (input.file_bytes > 0) parquet_.scan(input.path, visit);  // an empty file is refused as others are
    return;
  }
  std::unique_ptr<TextInput> opened;
  if (!input.pipe) opened = std::make_unique<TextInput>(input.path, spool_folder_);
  if (input.piped && !input.pipe) input.form = look_at_form(*opened), input.pipe = std::move(opened);
  TextInput& text = input.pipe ? *input.pipe : *opened;
  if (counted_) text.rewind();
  const JsonRules rules{.field = options_.field,
                        .chat = options_.chat,
                        .guessed = options_.format == "auto",
                        .document = options_.document,
                        .longest = options_.longest_line,
                        .preferences = options_.preferences ? &preferences_ : nullptr,
                        .unused = &unused_};
  if (input.form == InputForm::text)
    scan_text(text, visit);
  else if (input.form == InputForm::lines)
    scan_lines(text, rules, visit);
  else
    scan_objects(text, rules, visit);
}

void Inputs::scan(const TextVisitor& visit) {
  for (Input& input : inputs_) {
    Count count;
    TextVisitor counting = visit;
    counting.text = [&](std::string_view piece, bool counts) {
      count.bytes += std::ssize(piece);
      visit.text(piece, counts);
    };
    counting.end_document = [&] { ++count.documents, visit.end_document(); };
    scan_one(input, counting);
    const std::string name = name_of(input.path);
    if (counted_ && count != input.count)
      fail(ExitCode::data, "{}: the file changed while it was read. Run again when it is complete.", name);
    if (count.bytes == 0) fail(ExitCode::data, "{}: the file holds no text. Give a file with some.", name);
    if (!counted_) total_.bytes += count.bytes, total_.documents += count.documents;
    input.count = count;
  }
  counted_ = true;
}

}  // namespace tessera::io
