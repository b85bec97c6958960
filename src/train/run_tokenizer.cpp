#include "train/run_tokenizer.hpp"

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/check.hpp"
#include "base/log.hpp"
#include "io/files/posix_file.hpp"
#include "io/tokenizer/tokenizer.hpp"

namespace tessera {
namespace fs = std::filesystem;
namespace {

/// What a tokenizer consists of. config.json is kept for the end tokens that it may name alone; an export has one of its own.
constexpr std::array kept_files{"tokenizer.json",          "tokenizer_config.json",  "chat_template.jinja",
                                "special_tokens_map.json", "generation_config.json", "config.json"};

bool has_tokenizer(const std::string& folder) {
  std::error_code ignored;  // what cannot be looked at is no tokenizer of the run; the run's folder itself was checked
  return !folder.empty() && fs::is_regular_file(folder + "/tokenizer.json", ignored);
}

std::string first_digits(const std::string& digest) { return digest.substr(0, 8); }

/// `tessera tokenize --train-bpe` leaves the tokenizer beside the tokens that it made; of others it is none.
RunTokenizer tokenizer_beside(const std::vector<std::string>& files) {
  if (files.empty()) return {};
  const std::string folder = (fs::path(files.front()).parent_path() / "tokenizer").string();
  std::error_code ignored;  // a file that is not there is refused by who reads it
  if (!has_tokenizer(folder) || !fs::is_regular_file(files.front(), ignored)) return {};
  const std::string digest = io::tokenizer_digest(folder);
  return io::TokenFile(files.front()).tokenizer_digest() == digest ? RunTokenizer{folder, digest} : RunTokenizer{};
}

}  // namespace

std::string tokenizer_folder(const std::string& checkpoint) {
  std::error_code ignored;  // a checkpoint that is not there is refused by who reads it
  fs::path step = fs::weakly_canonical(checkpoint, ignored);
  if (!step.has_filename()) step = step.parent_path();
  const std::string folder = (step.parent_path().parent_path() / "tokenizer").string();
  return has_tokenizer(folder) ? folder : "";
}

RunTokenizer find_tokenizer(const Deck& deck, const std::string& run, const std::string& checkpoint) {
  RunTokenizer found;
  for (const std::string& folder :
       {deck.run.init, run.empty() ? run : run + "/tokenizer", checkpoint.empty() ? checkpoint : tokenizer_folder(checkpoint)}) {
    if (!has_tokenizer(folder)) continue;
    const std::string digest = io::tokenizer_digest(folder);
    if (found.folder.empty())
      found = {folder, digest};
    else if (digest != found.digest)
      fail(ExitCode::usage,
           "{}/tokenizer.json (digest {}) is another tokenizer than {}/tokenizer.json ({}). A run has one: choose another run.output_dir, "
           "or the model that the "
           "run began with.",
           found.folder, first_digits(found.digest), folder, first_digits(digest));
  }
  return found.folder.empty() ? tokenizer_beside(deck.data.train) : found;
}

void require_tokenizer(const RunTokenizer& tokenizer, const SampleFile& file) {
  if (tokenizer.folder.empty()) return;
  if (!file.tokenizer_digest().empty() && file.tokenizer_digest() != tokenizer.digest)
    fail(ExitCode::data,
         "{} holds tokens of another tokenizer ({}, digest {}) than {}/tokenizer.json (digest {}). Tokenize again: tessera tokenize "
         "--tokenizer {} ...",
         file.path(), file.tokenizer(), first_digits(file.tokenizer_digest()), tokenizer.folder, first_digits(tokenizer.digest),
         tokenizer.folder);
  if (file.tokenizer() == "byte")
    fail(ExitCode::data,
         "{} holds bytes, and this run's model has a tokenizer of its own, {}/tokenizer.json. Tokenize again: tessera tokenize --tokenizer "
         "{} ...",
         file.path(), tokenizer.folder, tokenizer.folder);
  if (file.tokenizer_digest().empty())
    info("{} does not say whose tokens it holds; they are taken for those of {}/tokenizer.json", file.path(), tokenizer.folder);
}

void require_same_tokenizer(const SampleFile& file, const SampleFile& other) {
  const auto known = [](const SampleFile& f) { return !f.tokenizer_digest().empty() || f.tokenizer() == "byte"; };
  if (!known(file) || !known(other) || file.tokenizer_digest() == other.tokenizer_digest()) return;
  const auto whose = [](const SampleFile& f) {
    return f.tokenizer_digest().empty() ? std::string("bytes")
                                        : fmt::format("tokens of {}, digest {}", f.tokenizer(), first_digits(f.tokenizer_digest()));
  };
  fail(ExitCode::data, "{} holds {} and {} {}: a run has one tokenizer. Tokenize one of them again.", file.path(), whose(file),
       other.path(), whose(other));
}

void copy_tokenizer_files(const std::string& from, const std::string& to, const std::vector<std::string>& names) {
  std::error_code error;
  fs::create_directories(to, error);
  if (error) io::fail_storage("make the folder", to, error.value());
  for (const std::string& name : names) {
    const auto file = io::PosixFile::open(from + "/" + name, ExitCode::data);
    std::string text(static_cast<std::size_t>(file.size()), '\0');
    text.resize(file.read(0, text.data(), text.size()));
    io::AtomicFile out(to + "/" + name);
    out.file().write(0, text.data(), text.size());
    out.commit();
  }
}

void keep_tokenizer(const RunTokenizer& tokenizer, const std::string& run) {
  const std::string to = run + "/tokenizer";
  if (tokenizer.folder.empty() || has_tokenizer(to)) return;
  std::vector<std::string> names;
  for (const char* name : kept_files)
    if (fs::exists(tokenizer.folder + "/" + name)) names.emplace_back(name);
  std::ranges::reverse(names);  // tokenizer.json last: where it is, all are
  copy_tokenizer_files(tokenizer.folder, to, names);
}

std::vector<std::string> exported_tokenizer_files(const std::string& folder) {
  std::vector<std::string> names;
  for (const std::string name : kept_files)
    if (!folder.empty() && name != "config.json" && fs::exists(folder + "/" + name)) names.push_back(name);
  return names;
}

}  // namespace tessera
