#include "io/tokens/token_writer.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/types.hpp"
#include "io/files/posix_file.hpp"
#include "io/tokens/loss_mask.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t chunk_tokens = 1 << 18;
static_assert(chunk_tokens % block_tokens == 0);

}  // namespace

TokenWriter::TokenWriter(std::string path, std::int64_t expected_tokens, std::int64_t expected_documents, bool masked, TokenKind kind)
    : path_(std::move(path)), temporary_(path_ + ".partial"), kind_(std::move(kind)), masked_(masked) {
  const std::int64_t blocks = ceil_div(expected_tokens, block_tokens);
  // HDF5 cannot take back a write that failed: find a full disk before it starts.
  out_ = PosixFile::create(temporary_);
  out_.reserve(expected_tokens * (element() == hdf5::Element::u16 ? 2 : 4) + (masked ? mask_bytes(expected_tokens) : 0) +
               expected_documents * 8 + blocks * 8 + 2 * chunk_tokens + 65536);
  file_.emplace(hdf5::File::create(out_.link_path(), {}, ExitCode::storage, temporary_));
  auto chunk = [](std::int64_t n) { return std::clamp<std::int64_t>(n, 1, chunk_tokens); };
  tokens_.emplace(file_->create_extendible("tokens", element(), chunk(expected_tokens)));
  documents_.emplace(file_->create_extendible("documents", hdf5::Element::i64, chunk(expected_documents)));
  if (masked) mask_.emplace(file_->create_extendible("loss_mask", hdf5::Element::u8, chunk(mask_bytes(expected_tokens))));
  buffer_.reserve(static_cast<std::size_t>(chunk_tokens));
}

TokenWriter::~TokenWriter() {
  if (committed_) return;
  tokens_.reset(), documents_.reset(), mask_.reset(), file_.reset();
  ::unlink(temporary_.c_str());  // if this fails a .partial stays that nobody reads
}

void TokenWriter::begin_document() {
  starts_.push_back(total());
  if (starts_.size() >= 65536) flush_documents();
}

void TokenWriter::add(std::uint32_t token, bool counts) {
  if (masked_) {
    const std::size_t bit = buffer_.size() % 8;
    if (bit == 0) counts_.push_back(0);
    counts_.back() |= static_cast<std::uint8_t>(counts << bit);
  }
  buffer_.push_back(token);
  if (static_cast<std::int64_t>(buffer_.size()) == chunk_tokens) flush_tokens();
}

void TokenWriter::add(std::span<const std::uint32_t> tokens, std::span<const std::uint8_t> counts) {
  for (std::size_t i = 0; i < tokens.size(); ++i) add(tokens[i], counts.empty() || counts[i] != 0);
}

template <class Id>
void TokenWriter::append_tokens(const std::vector<Id>& ids) {
  sums_.add(ids.data(), static_cast<std::int64_t>(ids.size()), sizeof(Id), tokens_->elements(), counts_);
  tokens_->append<Id>(ids);
}

void TokenWriter::flush_tokens() {
  if (element() == hdf5::Element::u32)
    append_tokens(buffer_);
  else
    append_tokens(std::vector<std::uint16_t>(buffer_.begin(), buffer_.end()));
  buffer_.clear();
  if (masked_) mask_->append<std::uint8_t>(counts_), counts_.clear();
}

void TokenWriter::flush_documents() {
  documents_->append<std::int64_t>(starts_);
  documents_hash_.update(starts_.data(), starts_.size() * sizeof(std::int64_t));
  starts_.clear();
}

template <class T>
void TokenWriter::write_column(const char* name, const std::vector<T>& values) {
  file_->create_extendible(name, hdf5::element_of<T>(), std::clamp<std::int64_t>(std::ssize(values), 1, chunk_tokens))
      .template append<T>(values);
  file_->set_attribute(digest_name(name), std::string_view(hash_bytes(values.data(), values.size() * sizeof(T)).hex()));
}

void TokenWriter::write_checks() {
  const TokenFacts facts{.tokens = tokens_->elements(),
                         .token_bytes = element() == hdf5::Element::u16 ? 2 : 4,
                         .largest_id = sums_.largest_id,
                         .largest_at = sums_.largest_at,
                         .content = sums_.content(),
                         .documents = documents_->elements(),
                         .vocab = kind_.vocab,
                         .counted = counted(),
                         .tokenizer = kind_.tokenizer,
                         .digest = kind_.digest,
                         .end_token = kind_.end_token,
                         .set = kind_.set};
  const auto blocks = static_cast<std::int64_t>(sums_.blocks.size());
  file_->create_extendible("tokens.xxh3", hdf5::Element::u64, std::clamp<std::int64_t>(blocks, 1, chunk_tokens))
      .append<std::uint64_t>(sums_.blocks);
  file_->set_attribute("tokenizer", std::string_view(facts.tokenizer));
  file_->set_attribute("vocab", facts.vocab);
  if (!facts.digest.empty()) file_->set_attribute("tokenizer.xxh3", std::string_view(facts.digest));
  if (facts.end_token >= 0) file_->set_attribute("end_token", facts.end_token);
  file_->set_attribute("documents", facts.documents);
  if (facts.set != TokenSet::documents) file_->set_attribute("kind", std::string_view(name_of(facts.set)));
  if (facts.set == TokenSet::labels) write_column(labels_name, labels_);
  if (facts.set == TokenSet::pairs && kind_.margins) write_column(margins_name, margins_);
  file_->set_attribute(documents_digest_name, std::string_view(documents_hash_.digest().hex()));
  file_->set_attribute("facts", std::string_view(facts.text()));
  file_->set_attribute("facts.xxh3", std::string_view(hash_text(facts.text()).hex()));
}

void TokenWriter::close() {
  flush_tokens(), flush_documents();
  write_checks();
  tokens_.reset(), documents_.reset(), mask_.reset();
  file_->close();
  file_.reset();
  out_.sync();
  out_.close();
}

void TokenWriter::commit() {
  rename_path(temporary_, path_);
  committed_ = true;
}

}  // namespace tessera::io
