#include "train/data/run_tokenizer.hpp"

#include <fmt/ranges.h>

#include <filesystem>
#include <optional>

#include "base/check.hpp"
#include "base/log.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/files/path_state.hpp"
#include "io/files/utf8.hpp"
#include "io/tokenizer/chat_templates.hpp"
#include "io/tokenizer/tokenizer_digest.hpp"
#include "models/foreign_model.hpp"
#include "models/model_folder.hpp"

namespace tessera {
namespace fs = std::filesystem;
namespace {

bool has_tokenizer(const std::string& folder) {
  std::error_code ignored;  // what cannot be looked at is no tokenizer of the run; the run's folder itself was checked
  return !folder.empty() && fs::is_regular_file(folder + "/tokenizer.json", ignored);
}

using io::first_digits;

/// Earlier versions noted tokenizer.json alone, of which a user hears once.
void say_not_compared(const std::string& what) {
  info("{} was made by an earlier version, which noted tokenizer.json alone: the files beside it are taken for unchanged", what);
}

/// `tessera tokenize --train-bpe` leaves the tokenizer beside the tokens that it made; of others it is none.
RunTokenizer tokenizer_beside(const DataKeys& data) {
  const std::vector<std::string>& files = data.train;
  if (files.empty()) return {};
  const std::string folder = (fs::path(files.front()).parent_path() / "tokenizer").string();
  std::error_code ignored;  // a file that is not there is refused by who reads it
  if (!has_tokenizer(folder) || !fs::is_regular_file(files.front(), ignored)) return {};
  const std::string digest = io::tokenizer_digest(folder);
  const bool same = io::may_be_same_tokenizer(io::TokenFile(files.front(), data.bin_ids).tokenizer_digest(), digest);
  return same ? RunTokenizer{folder, digest, folder + "/tokenizer.json"} : RunTokenizer{};
}

/// The digest that a checkpoint's deck carries; "" where it has none. What cannot be read is refused by who reads it.
std::string carried_digest(const std::string& checkpoint) {
  if (checkpoint.empty()) return "";
  try {
    const io::CheckpointReader reader(checkpoint);
    const std::string named = parse_stored_deck(reader.meta().deck, reader.folder() + "/checkpoint.h5:deck").deck.data.tokenizer;
    return io::is_tokenizer_digest(named) ? named : "";
  } catch (const Error&) {
    return "";
  }
}

/// The tokenizer alone.
RunTokenizer find_files(const Deck& deck, const std::string& run, const std::string& checkpoint) {
  RunTokenizer found;
  const auto take = [&](const RunTokenizer& one) {
    if (found.digest.empty())
      found = one;
    else if (!io::may_be_same_tokenizer(one.digest, found.digest))
      fail(ExitCode::usage,
           "{} (digest {}) differs from {} ({}).{} A run has only one tokenizer. Choose another run.output_dir, or the tokenizer or model "
           "that the run started with.",
           found.source, first_digits(found.digest), one.source, first_digits(one.digest), io::settings_differ(found.digest, one.digest));
    else if (!io::has_tokenizer_settings(found.digest))
      found.digest = one.digest;
  };
  const std::string& named = deck.data.tokenizer;
  if (!named.empty() && !io::is_tokenizer_digest(named) && !has_tokenizer(named))
    fail(ExitCode::usage,
         "data.tokenizer: {}/tokenizer.json is missing, and {} is not a digest (32 hexadecimal digits). Name the folder of a tokenizer, or "
         "the digest in its token files.{}",
         named, named, foreign_tokenizer(named) + instead_of_model(named));
  for (const std::string& folder : {io::is_tokenizer_digest(named) ? std::string() : named, deck.run.init,
                                    run.empty() ? run : run + "/tokenizer", checkpoint.empty() ? checkpoint : tokenizer_folder(checkpoint)})
    if (has_tokenizer(folder)) take({.folder = folder, .digest = io::tokenizer_digest(folder), .source = folder + "/tokenizer.json"});
  if (io::is_tokenizer_digest(named)) take({.folder = "", .digest = named, .source = "data.tokenizer"});
  if (const std::string carried = carried_digest(checkpoint); !carried.empty())
    take({.folder = "", .digest = carried, .source = "the tokenizer of " + checkpoint});
  if (!found.folder.empty()) return found;
  const RunTokenizer beside = tokenizer_beside(deck.data);
  return !beside.folder.empty() && (found.digest.empty() || io::may_be_same_tokenizer(found.digest, beside.digest)) ? beside : found;
}

std::string require_chat_template(const std::string& named, const RunTokenizer& tokenizer) {
  if (tokenizer.folder.empty())
    fail(ExitCode::usage,
         "data.chat_template: the run has no tokenizer to store a chat template with. Name one: data.tokenizer = \"DIR\".");
  const std::optional<std::string> text = io::find_chat_template(named);
  if (!text)
    fail(ExitCode::usage, "data.chat_template: {} is neither a file nor one of {}.", named, fmt::join(io::chat_template_names(), ", "));
  io::require_utf8("data.chat_template: the text of " + named, *text);
  return *text;
}

}  // namespace

std::string kept_folder(const std::string& checkpoint) {
  std::error_code ignored;  // a checkpoint that is not there is refused by who reads it
  fs::path step = fs::weakly_canonical(checkpoint, ignored);
  if (!step.has_filename()) step = step.parent_path();
  return (step.parent_path().parent_path() / "tokenizer").string();
}

std::string tokenizer_folder(const std::string& checkpoint) {
  const std::string folder = kept_folder(checkpoint);
  return has_tokenizer(folder) ? folder : "";
}

RunTokenizer find_tokenizer(const Deck& deck, const std::string& run, const std::string& checkpoint) {
  RunTokenizer found = find_files(deck, run, checkpoint);
  for (const std::string& folder : {checkpoint.empty() ? checkpoint : kept_folder(checkpoint), deck.run.init})
    if (found.model.empty() && !folder.empty() && !io::look_at(folder + "/config.json").nothing()) found.model = folder;
  if (!deck.data.chat_template.empty()) found.chat_template = require_chat_template(deck.data.chat_template, found);
  return found;
}

std::string choose_tokenizer(const std::string& named, const std::string& checkpoint) {
  const std::string folder = named.empty() ? tokenizer_folder(checkpoint) : named, carried = carried_digest(checkpoint);
  if (!named.empty() && io::look_at(named + "/tokenizer.json").nothing())
    fail(ExitCode::data, "--tokenizer {}: {}/tokenizer.json is missing. Give the folder of a Hugging Face model.{}", named, named,
         foreign_tokenizer(named) + instead_of_model(named));
  if (folder.empty() || carried.empty()) return folder;
  if (const std::string digest = io::tokenizer_digest(folder); !io::may_be_same_tokenizer(digest, carried))
    fail(ExitCode::usage,
         "{}/tokenizer.json (digest {}) differs from the tokenizer of {} ({}).{} Name the folder of the one that it was trained with.",
         folder, first_digits(digest), checkpoint, first_digits(carried), io::settings_differ(digest, carried));
  if (!io::has_tokenizer_settings(carried)) say_not_compared(checkpoint);
  return folder;
}

void require_tokenizer(const RunTokenizer& tokenizer, const SampleFile& file) {
  if (tokenizer.digest.empty()) return;
  const std::string again =
      fmt::format("Tokenize again: tessera tokenize --tokenizer {} ...", tokenizer.folder.empty() ? "DIR" : tokenizer.folder);
  const std::string digest = file.tokenizer_digest();
  if (!digest.empty() && !io::may_be_same_tokenizer(digest, tokenizer.digest))
    fail(ExitCode::data, "{} holds tokens of another tokenizer ({}, digest {}) than {} (digest {}).{} {}", file.path(), file.tokenizer(),
         first_digits(digest), tokenizer.source, first_digits(tokenizer.digest), io::settings_differ(digest, tokenizer.digest), again);
  if (!digest.empty() && !io::has_tokenizer_settings(digest)) say_not_compared(file.path());
  if (file.tokenizer() == "byte")
    fail(ExitCode::data, "{} holds bytes, but this run's model has its own tokenizer, {} (digest {}). {}", file.path(), tokenizer.source,
         first_digits(tokenizer.digest), again);
  if (digest.empty()) info("{} does not name its tokenizer; its tokens are assumed to be those of {}", file.path(), tokenizer.source);
}

void require_same_tokenizer(const SampleFile& file, const SampleFile& other) {
  const auto known = [](const SampleFile& f) { return !f.tokenizer_digest().empty() || f.tokenizer() == "byte"; };
  if (!known(file) || !known(other) || io::may_be_same_tokenizer(file.tokenizer_digest(), other.tokenizer_digest())) return;
  const auto whose = [](const SampleFile& f) {
    return f.tokenizer_digest().empty() ? std::string("bytes")
                                        : fmt::format("tokens of {}, digest {}", f.tokenizer(), first_digits(f.tokenizer_digest()));
  };
  fail(ExitCode::data, "{} holds {} and {} {}: a run has one tokenizer. Tokenize one of them again.", file.path(), whose(file),
       other.path(), whose(other));
}

}  // namespace tessera
