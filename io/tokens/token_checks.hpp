// What makes the tokens of a file trustworthy: a checksum for each block of them, and the facts of all of them. Files of `tessera tokenize`
// hold both; for others a scan finds them, and they are kept in a file beside.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.hpp"
#include "io/files/posix_file.hpp"

namespace tessera::io {

/// Tokens in a block; the last block of a file may hold fewer. Part of the format.
constexpr std::int64_t block_tokens = 1 << 15;

/// Attribute of the file: the digest of the dataset "documents".
extern const char* const documents_digest_name;
/// Datasets of preferences, and the attribute with the digest of one.
inline constexpr const char *labels_name = "labels", *margins_name = "margins";
inline std::string digest_name(const char* dataset) { return std::string(dataset) + ".xxh3"; }

/// XXH3 of a block's ids as they lie in the file, little-endian, `token_bytes` each, and after them of its loss mask where there is one.
std::uint64_t block_checksum(const void* ids, std::size_t bytes, std::span<const std::uint8_t> mask = {});

/// The checksums of a run of blocks, the largest id in them with the first position where it stands, and how many of them count in the
/// loss where there is a mask.
struct TokenSums {
  std::vector<std::uint64_t> blocks;
  std::int64_t largest_id = -1, largest_at = 0, counted = 0;

  /// Goes on with `count` ids, of which the first has position `at` in the file, and their loss mask. All calls but the last add whole
  /// blocks.
  void add(const void* ids, std::int64_t count, std::size_t token_bytes, std::int64_t at, std::span<const std::uint8_t> mask = {});
  /// Goes on with the blocks that follow.
  void append(const TokenSums& next);
  /// Digest of all checksums: files with equal digests hold equal tokens.
  Hash128 content() const;
  /// As bytes for another rank, and back.
  std::string pack() const;
  static TokenSums unpack(std::string_view bytes);
};

/// What the documents of a file are.
enum class TokenSet : std::uint8_t {
  documents,  ///< texts, one by one
  pairs,      ///< 2i is a chosen and 2i + 1 a rejected completion after the same prompt
  labels,     ///< completions after prompts, of which each is desirable or not
};
/// "documents", "pairs", "labels".
const char* name_of(TokenSet set);
std::optional<TokenSet> token_set_of(std::string_view name);

struct TokenFacts {
  std::int64_t tokens = 0, token_bytes = 0;
  std::int64_t largest_id = 0, largest_at = 0;
  Hash128 content;
  std::int64_t documents = 0, vocab = 0;  ///< that the writer declared, 0 where it did not
  std::int64_t counted = -1;              ///< tokens that count in the loss; -1: there is no mask, and all do
  std::string tokenizer;                  ///< "" where unknown
  std::string digest;                     ///< its tokenizer_digest; "" where it has none, or it is unknown
  std::int64_t end_token = -1;            ///< that ends each document; -1: none, or unknown
  TokenSet set = TokenSet::documents;
  friend bool operator==(const TokenFacts&, const TokenFacts&) = default;

  /// One line of JSON, and back; empty where it is of another version or no such line. Who keeps the line keeps a digest of it too.
  std::string text() const;
  static std::optional<TokenFacts> parse(std::string_view text);
};

/// Which content of a file was checked: a file of another size or time has to be checked again.
struct FileStamp {
  std::int64_t bytes = 0, modified_ns = 0;
  static FileStamp of(const PosixFile&);
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

/// The file beside a token file, PATH.checked: a line with the stamp, a line with the facts, their digest, then the checksums.
struct KeptChecks {
  TokenFacts facts;
  TokenSums sums;

  static std::string path_for(const std::string& token_file) { return token_file + ".checked"; }
  /// Empty where there is none for this content, or it is damaged: it is only a way to save a scan.
  static std::optional<KeptChecks> read(const std::string& token_file, const FileStamp& stamp);
  /// Throws Error(storage).
  void write(const std::string& token_file, const FileStamp& stamp) const;
};

}  // namespace tessera::io
