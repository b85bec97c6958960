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

  TokenWriter(std::string path, std::int64_t expected_tokens, std::int64_t expected_documents);
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  void begin_document();
  void add(std::uint16_t token);
  void add(std::string_view bytes) {
    for (unsigned char b : bytes) add(b);
  }
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
  std::optional<hdf5::Dataset> tokens_, documents_;
  std::vector<std::uint16_t> buffer_;
  std::vector<std::int64_t> starts_;
  TokenSums sums_;
  bool committed_ = false;
};

}  // namespace tessera::io
