#include "io/tokenizer/bpe_trainer.hpp"

#include <cstring>
#include <filesystem>
#include "base/json.hpp"

#include "io/files/posix_file.hpp"
#include "io/files/utf8.hpp"
#include "io/tokenizer/child.hpp"
#include "io/tokenizer/worker.hpp"

namespace tessera::io {
namespace {

/// Texts are sent in so many bytes, and longer ones are cut there.
constexpr std::size_t batch_bytes = 1 << 20;

/// The longest beginning of a text of about `most` bytes that ends before a blank, so that no word is cut; before a character where there
/// is no blank.
std::size_t cut_of(std::string_view text, std::size_t most) {
  const std::size_t blank = text.find_last_of(" \n", most);
  if (blank != text.npos && blank > 0) return blank;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;
  return most;
}

void write_file(const std::string& path, const std::string& text) {
  AtomicFile out(path);
  out.file().write(0, text.data(), text.size());
  out.commit();
}

}  // namespace

BpeTrainer::BpeTrainer(const std::string& python, std::int64_t vocab, std::string end_token)
    : child_(start_worker(python, worker_text, endless_memory)), end_token_(end_token.empty() ? "<|endoftext|>" : std::move(end_token)) {
  require_utf8("--end-token", end_token_);
  ask_worker(*child_, "lear", Json{{"vocab", vocab}, {"end_token", end_token_}}.dump());
}
BpeTrainer::~BpeTrainer() = default;

void BpeTrainer::add(std::string_view text) {
  text_.append(text);
  while (text_.size() > batch_bytes) {
    const std::string rest = text_.substr(cut_of(text_, batch_bytes));
    text_.resize(text_.size() - rest.size());
    end_document();
    text_ = rest;
  }
}

void BpeTrainer::end_document() {
  if (text_.empty()) return;
  const auto bytes = static_cast<std::uint32_t>(text_.size());
  request_.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  request_.append(text_);
  text_.clear(), ++texts_;
  if (request_.size() >= batch_bytes) flush();
}

void BpeTrainer::flush() {
  if (texts_ == 0) return;
  std::string request(sizeof texts_, '\0');
  std::memcpy(request.data(), &texts_, sizeof texts_);
  ask_worker(*child_, "more", request + request_);
  request_.clear(), texts_ = 0;
}

void BpeTrainer::write(const std::string& folder) {
  end_document();
  flush();
  const std::string learnt = ask_worker(*child_, "last", "", endless_patience);  // hours, of a large corpus
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail_storage("create the folder", folder, error.value());
  const Json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                    {"bos_token", end_token_},
                    {"eos_token", end_token_},
                    {"unk_token", end_token_},
                    {"add_bos_token", false},
                    {"clean_up_tokenization_spaces", false}};
  write_file(folder + "/tokenizer.json", learnt);
  write_file(folder + "/tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace tessera::io
