// Text to tokens in two passes: the first checks the whole input and counts, so that a bad input leaves nothing behind and the split is
// known; the second writes.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "base/check.hpp"
#include "base/control_groups.hpp"
#include "base/log.hpp"
#include "io/files/byte_progress.hpp"
#include "io/files/path_state.hpp"
#include "io/files/posix_file.hpp"
#include "io/tokenizer/bpe_trainer.hpp"
#include "io/tokens/documents.hpp"
#include "io/tokens/inputs.hpp"
#include "io/tokens/token_writer.hpp"
#include "io/tokens/tokens.hpp"
#include "models/foreign_model.hpp"
#include "models/model_folder.hpp"

namespace tessera::io {
namespace {

namespace fs = std::filesystem;

/// The folder itself, or the nearest one above it that is there.
std::string nearest_folder(const std::string& path) {
  std::error_code ignored;  // what cannot be looked at is left to who writes into it: that has the system's reason
  fs::path at = path;
  while (!at.empty() && fs::status(at, ignored).type() == fs::file_type::not_found) {
    const fs::path above = at.parent_path();
    if (above == at) break;
    at = above;
  }
  return at.empty() ? "." : at.string();
}

/// How the inputs are divided.
struct Split {
  std::int64_t documents = 0;                         // of the inputs
  std::int64_t train_documents = 0, train_bytes = 0;  // train_bytes only counts where there is one document
};

Split plan_split(const Inputs& inputs, const TokenizeOptions& o) {
  const std::int64_t bytes = inputs.text_bytes(), documents = inputs.documents();
  Split s{documents, documents, bytes};
  if (o.validation <= 0) return s;
  auto portion = [&](std::int64_t whole) {
    if (whole < 2) fail(ExitCode::data, "{}: one byte cannot be split. Give more text or no --validation.", inputs.label());
    return std::clamp<std::int64_t>(std::llround(static_cast<double>(whole) * o.validation), 1, whole - 1);
  };
  if (documents == 1 && (o.chat || o.preferences))
    fail(ExitCode::data, "{}: one {} cannot be split. Give more of them or no --validation.", inputs.label(),
         o.preferences ? "preference" : "conversation");
  if (documents > 1) {
    s.train_documents -= portion(documents);
  } else {
    s.train_bytes -= portion(bytes);
  }
  return s;
}

/// The second pass: sends every byte to the file that it belongs to.
class Router {
 public:
  Router(const Split& split, Documents& train, Documents* validation) : split_(split), validation_(validation), target_(&train) {}

  void text(std::string_view piece, bool counts) {
    bytes_ += static_cast<std::int64_t>(piece.size());
    if (validation_ && split_.documents == 1 && target_ != validation_) piece = cut_here(piece, counts);
    if (piece.empty()) return;
    open_document();
    target_->text(piece, counts);
  }
  void end_document() { ++documents_, close_document(); }
  void at(const std::string& place) { place_ = place; }

 private:
  /// The only document is cut at train_bytes, moved on to where a character starts; what comes before goes to train.
  std::string_view cut_here(std::string_view piece, bool counts) {
    auto before = bytes_ - static_cast<std::int64_t>(piece.size());
    auto cut = static_cast<std::size_t>(std::clamp<std::int64_t>(split_.train_bytes - before, 0, static_cast<std::int64_t>(piece.size())));
    while (cut < piece.size() && (static_cast<unsigned char>(piece[cut]) & 0xc0) == 0x80) ++cut;
    if (cut > 0) {
      open_document();
      target_->text(piece.substr(0, cut), counts);
    }
    if (cut == piece.size()) return {};
    close_document();
    target_ = validation_;
    return piece.substr(cut);
  }
  void open_document() {
    if (open_) return;
    if (documents_ >= split_.train_documents && validation_) target_ = validation_;
    target_->begin(place_);
    open_ = true;
  }
  void close_document() {
    if (open_) target_->end();
    open_ = false;
  }
  const Split& split_;
  Documents* validation_;
  Documents* target_;
  std::string place_;
  std::int64_t bytes_ = 0, documents_ = 0;
  bool open_ = false;
};

/// The tokenizer that was asked for, and its files.
class Outputs {
 public:
  /// `preferences`: what the inputs hold, where they hold such.
  Outputs(const TokenizeOptions& o, const PreferenceForm* preferences)
      : folder_(o.output_dir),
        keys_{o.field, o.ignored},
        preferences_{o.chat, o.longest_sequence, o.ignored},
        chat_(o.chat),
        longest_(o.longest_line) {
    if (preferences) kind_.set = preferences->set(), kind_.margins = preferences->margins();
    if (o.tokenizer == "byte") {
      if (preferences) kind_.end_token = TokenWriter::separator;
      return;
    }
    pool_.emplace(TokenizerSource{.python = o.python,
                                  .folder = o.tokenizer,
                                  .end_token = o.end_token,
                                  .chat_template = o.chat_template,
                                  .patience = std::chrono::seconds(o.patience_seconds),
                                  .memory = o.worker_memory},
                  o.workers);
    queue_.emplace(*pool_);
    const TokenizerFacts& facts = pool_->facts();
    for (const std::string& note : facts.notes) info("{}", note);
    kind_.tokenizer = facts.name, kind_.digest = facts.digest, kind_.vocab = facts.vocab, kind_.end_token = facts.end;
  }
  /// Opens a file for about so many bytes of text.
  void open(const std::string& name, std::int64_t bytes, std::int64_t documents, bool masked) {
    const std::int64_t tokens = documents + (pool_ ? bytes / 4 : bytes);  // a model's has about four bytes a token
    TokenWriter& writer = *writers_.emplace_back(std::make_unique<TokenWriter>(folder_ + name, tokens, documents, masked, kind_));
    if (kind_.set != TokenSet::documents && !pool_)
      bytes_.push_back(static_cast<BytePreferences*>(
          documents_.emplace_back(std::make_unique<BytePreferences>(writer, preferences_, unused_, found_)).get()));
    else if (kind_.set != TokenSet::documents)
      documents_.push_back(std::make_unique<PreferenceDocuments>(writer, *queue_, preferences_, unused_, found_));
    else if (chat_)
      documents_.push_back(std::make_unique<ChatDocuments>(writer, *queue_, keys_, unused_));
    else if (pool_)
      documents_.push_back(std::make_unique<ModelDocuments>(writer, *queue_, masked, longest_));
    else
      documents_.push_back(std::make_unique<ByteDocuments>(writer));
  }
  Documents& documents(std::size_t file) { return *documents_[file]; }
  const TokenWriter& writer(std::size_t file) const { return *writers_[file]; }
  const TokenKind& kind() const { return kind_; }
  const SeenKeys& unused() const { return unused_; }
  /// What became of preferences, once all are written.
  PreferenceCounts preferences() const {
    PreferenceCounts counts = queue_ ? queue_->preferences() : PreferenceCounts{};
    for (const BytePreferences* of : bytes_) counts.add(of->counts());
    const PreferenceNotes& notes = found_.notes();
    counts.equal = notes.equal, counts.without_prompt = notes.without_prompt;
    counts.too_long = notes.too_long, counts.truncated = notes.truncated;
    return counts;
  }

  void finish() {
    for (const auto& documents : documents_) documents->finish();
    if (queue_) queue_->finish();
  }
  /// Gives all of them their names.
  void commit() {
    for (const auto& writer : writers_) writer->close();
    for (const auto& writer : writers_) writer->commit();
    sync_folder(folder_);
  }

 private:
  std::string folder_;
  ChatKeys keys_;
  PreferenceKeys preferences_;
  bool chat_;
  std::int64_t longest_;
  SeenKeys unused_;
  FoundPreferences found_;
  TokenKind kind_;
  std::optional<EncoderPool> pool_;
  std::optional<EncodingQueue> queue_;
  std::vector<std::unique_ptr<TokenWriter>> writers_;
  std::vector<std::unique_ptr<Documents>> documents_;
  std::vector<const BytePreferences*> bytes_;  ///< those of them
};

/// What --train-bpe goes with.
void check_training(const TokenizeOptions& o) {
  if (o.tokenizer != "byte")
    fail(ExitCode::usage, "--train-bpe makes a tokenizer, but --tokenizer {} names one: leave one of them out.", o.tokenizer);
  if (o.chat) fail(ExitCode::usage, "--chat renders conversations with a model's template, but --train-bpe makes a tokenizer without one.");
  if (o.train_bpe < least_bpe_vocab)
    fail(ExitCode::usage, "--train-bpe {}: the bytes and the end of a document alone are {} tokens. Give more.", o.train_bpe,
         least_bpe_vocab);
}

/// What --preferences goes with.
void check_preferences(const TokenizeOptions& o) {
  if (!o.preferences && o.longest_sequence != 0)
    fail(ExitCode::usage, "--longest-sequence works only with --preferences. Give that too, or leave it out.");
  if (!o.preferences) return;
  if (o.train_bpe != 0)
    fail(ExitCode::usage,
         "--train-bpe learns from texts, and --preferences takes pairs. Learn a tokenizer from texts first, then name it: --tokenizer.");
  if (!o.field.empty())
    fail(ExitCode::usage, "--field {} names the key of a text, but --preferences knows its keys. Leave it out.", o.field);
  if (o.format == "text") fail(ExitCode::usage, "--preferences takes JSON or Parquet, but --format is text. Leave --format out.");
}

void check_options(const TokenizeOptions& o) {
  check_preferences(o);
  if (o.train_bpe != 0) check_training(o);
  if (o.tokenizer != "byte" && look_at(o.tokenizer + "/tokenizer.json").nothing())
    fail(ExitCode::usage, "--tokenizer {}: {}/tokenizer.json is missing. Give byte, or the folder of a Hugging Face model.{}", o.tokenizer,
         o.tokenizer, foreign_tokenizer(o.tokenizer) + instead_of_model(o.tokenizer));
  if (!o.chat && !o.preferences && (!o.chat_template.empty() || !o.ignored.empty()))
    fail(ExitCode::usage, "{} works only with --chat or --preferences. Give that too, or leave it out.",
         o.chat_template.empty() ? "--ignore" : "--chat-template");
  if (o.tokenizer == "byte" && o.chat)
    fail(ExitCode::usage, "--chat renders conversations with a model's template, but the byte tokenizer has none. Give --tokenizer DIR.");
  if (o.chat && o.format == "text") fail(ExitCode::usage, "--chat takes JSON or Parquet, but --format is text. Leave --format out.");
  if (o.format == "text" && !o.field.empty())
    fail(ExitCode::usage, "--field {} names the text's key in a line or row, but --format is text. Leave one of them out.", o.field);
  if (o.tokenizer == "byte" && o.train_bpe == 0 && !o.end_token.empty())
    fail(ExitCode::usage, "--end-token {} works with the tokenizer of a model; the byte tokenizer has its own.", o.end_token);
  if (std::ranges::find(input_formats, o.format) == std::end(input_formats))
    fail(ExitCode::usage, "--format {} does not exist; there are {}.", o.format, fmt::join(input_formats, ", "));
  if (!(o.validation >= 0 && o.validation < 1)) fail(ExitCode::usage, "--validation {} is not in [0, 1).", o.validation);
}

}  // namespace

namespace {

/// Of the second pass, in bytes of the first: 14 MB of JSON lines were counted in 0.3 s and became tokens of a model in 19 s of one worker.
double cost_of_writing(const TokenizeOptions& o) {
  constexpr double of_bytes = 2, of_model = 60;
  if (o.tokenizer == "byte" && o.train_bpe == 0) return of_bytes;
  const double workers = o.workers > 0 ? o.workers : usable_threads();
  return std::max(of_bytes, of_model / workers);
}

}  // namespace

TokenizeResult tokenize(const TokenizeOptions& asked) {
  check_options(asked);
  TokenizeOptions o = asked;
  // 1. Check and count.
  Inputs inputs(asked, nearest_folder(o.output_dir));
  ByteProgress progress("tokenize", inputs.file_bytes(), o.progress, {1, cost_of_writing(o)});
  auto advance = [&](std::int64_t n) { progress.add(n); };
  bool masked = o.chat || o.preferences;
  std::optional<BpeTrainer> trainer;
  if (o.train_bpe > 0) trainer.emplace(o.python, o.train_bpe, o.end_token);
  const auto count = [&](std::string_view text, bool counts) {
    masked |= !counts;
    if (trainer) trainer->add(text);
  };
  const auto end_document = [&] {
    if (trainer) trainer->end_document();
  };
  inputs.scan({count, end_document, [](const std::string&) {}, advance});
  const std::int64_t bytes = inputs.text_bytes(), documents = inputs.documents();
  const Split split = plan_split(inputs, o);
  if (trainer) o.tokenizer = o.output_dir + "/tokenizer", trainer->write(o.tokenizer);
  // 2. Write under temporary names.
  progress.next_pass();
  Outputs outputs(o, o.preferences ? &inputs.preferences() : nullptr);
  std::error_code e;
  fs::create_directories(o.output_dir, e);
  if (e) fail_storage("create the folder", o.output_dir, e.value());
  const bool validation = o.validation > 0;
  outputs.open("/train.h5", bytes, documents, masked);
  if (validation) outputs.open("/val.h5", static_cast<std::int64_t>(static_cast<double>(bytes) * o.validation), documents, masked);
  Router router(split, outputs.documents(0), validation ? &outputs.documents(1) : nullptr);
  inputs.scan({[&](std::string_view text, bool counts) { router.text(text, counts); }, [&] { router.end_document(); },
               [&](const std::string& place) { router.at(place); }, advance});
  outputs.finish();
  TokenizeResult result{.train_tokens = outputs.writer(0).total(),
                        .validation_tokens = validation ? outputs.writer(1).total() : 0,
                        .inputs = inputs.label(),
                        .documents = documents,
                        .vocab = outputs.kind().vocab};
  if (o.preferences) result.set = outputs.kind().set, result.preferences = outputs.preferences();
  if (o.preferences && (result.train_tokens == 0 || (validation && result.validation_tokens == 0)))
    fail(ExitCode::data,
         "{}: no preference is left for {}: {} had a prompt of --longest-sequence tokens or more, and {} had no prompt. Give more.",
         inputs.label(), result.train_tokens == 0 ? "train.h5" : "val.h5", result.preferences.too_long, result.preferences.without_prompt);
  if (validation && (result.validation_tokens == 0 || result.train_tokens == 0))
    fail(ExitCode::data, "{}: too little text to split. Give more text or no --validation.", inputs.label());
  // 3. Give them their names.
  outputs.commit();
  result.unused = inputs.unused();
  result.train_counted = outputs.writer(0).counted(), result.validation_counted = validation ? outputs.writer(1).counted() : -1;
  for (const std::string& name : outputs.unused().names())
    if (std::ranges::find(result.unused, name) == result.unused.end()) result.unused.push_back(name);
  result.tokenizer = outputs.kind().tokenizer, result.digest = outputs.kind().digest;
  return result;
}

}  // namespace tessera::io
