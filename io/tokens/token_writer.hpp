// Writes token files as `tessera tokenize` makes them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/hdf5/hdf5.hpp"
#include "io/tokens/token_checks.hpp"

namespace tessera::io {

/// One output file of byte tokens, under its temporary name until commit(). Failures are Error(storage).
class TokenWriter {
 public:
  static constexpr std::int64_t vocab = 257;
  static constexpr std::uint16_t separator = 256;  ///< between documents

  /// `masked`: the file says of each token whether it counts in the loss.
  TokenWriter(std::string path, std::int64_t expected_tokens, std::int64_t expected_documents, bool masked = false);
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  void begin_document();
  void add(std::uint16_t token, bool counts = true);
  void add(std::string_view bytes, bool counts = true) {
    for (unsigned char b : bytes) add(b, counts);
  }
  /// Tokens that count in the loss, once closed; -1: all.
  std::int64_t counted() const { return masked_ ? sums_.counted : -1; }
  std::int64_t total() const { return tokens_->elements() + static_cast<std::int64_t>(buffer_.size()); }

  /// Everything is written and on the disk, still under the temporary name.
  void close();
  void commit();

 private:
  void flush_tokens();
  void flush_documents() { documents_->append<std::int64_t>(starts_), starts_.clear(); }
  void write_checks();
  std::string path_, temporary_;
  std::optional<hdf5::File> file_;
  std::optional<hdf5::Dataset> tokens_, documents_, mask_;
  std::vector<std::uint16_t> buffer_;
  std::vector<std::uint8_t> counts_;  ///< a bit for each token of the buffer
  std::vector<std::int64_t> starts_;
  TokenSums sums_;
  bool masked_ = false, committed_ = false;
};

}  // namespace tessera::io
