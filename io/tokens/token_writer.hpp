// Writes token files as `tessera tokenize` makes them.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/files/posix_file.hpp"
#include "io/hdf5/hdf5.hpp"
#include "io/tokens/token_checks.hpp"

namespace tessera::io {

/// Whose tokens they are, as the file says it.
struct TokenKind {
  std::string tokenizer = "byte";
  std::string digest = {};      ///< its tokenizer_digest; "": it has none
  std::int64_t vocab = 257;     ///< above 65536 ids are uint32, else uint16
  std::int64_t end_token = -1;  ///< ends each document; -1: none does
  TokenSet set = TokenSet::documents;
  bool margins = false;  ///< of TokenSet::pairs: each has one
};

/// One output file of tokens, under its temporary name until commit(). Failures are Error(storage).
class TokenWriter {
 public:
  static constexpr std::uint16_t separator = 256;  ///< of the byte tokenizer, between documents

  /// `masked`: the file says of each token whether it counts in the loss.
  TokenWriter(std::string path, std::int64_t expected_tokens, std::int64_t expected_documents, bool masked = false, TokenKind kind = {});
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  void begin_document();
  void add(std::uint32_t token, bool counts = true);
  void add(std::string_view bytes, bool counts = true) {
    for (unsigned char b : bytes) add(b, counts);
  }
  /// `counts`: a number for each token, 0 or 1; empty where all count.
  void add(std::span<const std::uint32_t> tokens, std::span<const std::uint8_t> counts);
  /// Of TokenSet::labels, for each document; of TokenSet::pairs with margins, for each pair.
  void add_label(bool desirable) { labels_.push_back(desirable ? 1 : 0); }
  void add_margin(float margin) { margins_.push_back(margin); }
  TokenSet set() const { return kind_.set; }
  bool margins() const { return kind_.margins; }
  /// Tokens that count in the loss, once closed; -1: all.
  std::int64_t counted() const { return masked_ ? sums_.counted : -1; }
  std::int64_t total() const { return tokens_->elements() + static_cast<std::int64_t>(buffer_.size()); }

  /// Everything is written and on the disk, still under the temporary name.
  void close();
  void commit();

 private:
  void flush_tokens();
  void flush_documents();
  void write_checks();
  template <class T>
  void write_column(const char* name, const std::vector<T>& values);
  hdf5::Element element() const { return kind_.vocab > 65536 ? hdf5::Element::u32 : hdf5::Element::u16; }
  template <class Id>
  void append_tokens(const std::vector<Id>& ids);
  std::string path_, temporary_;
  TokenKind kind_;
  PosixFile out_;  ///< what HDF5 writes to, by descriptor: the name could be another file by now
  std::optional<hdf5::File> file_;
  std::optional<hdf5::Dataset> tokens_, documents_, mask_;
  std::vector<std::uint32_t> buffer_;
  std::vector<std::uint8_t> counts_;  ///< a bit for each token of the buffer
  std::vector<std::int64_t> starts_;
  std::vector<std::uint8_t> labels_;
  std::vector<float> margins_;
  TokenSums sums_;
  Hasher documents_hash_;
  bool masked_ = false, committed_ = false;
};

}  // namespace tessera::io
