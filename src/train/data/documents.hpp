// Where the documents of a token file begin, and what of them a sequence holds.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/hash.hpp"
#include "io/tokens/tokens.hpp"

namespace tessera {

class Documents {
 public:
  /// Reads their offsets: 8 bytes each. Empty ones are left out, but of preferences, where each has its place, they are Error(data). Throws
  /// Error(data) where the file has none (.bin), or where they are no offsets of its tokens.
  explicit Documents(const io::TokenFile& file);

  std::int64_t count() const { return static_cast<std::int64_t>(begins_.size()); }
  std::int64_t end_of(std::int64_t document) const { return document + 1 < count() ? begin_of(document + 1) : tokens_; }
  /// The token that it begins with.
  std::int64_t begin_of(std::int64_t document) const { return begins_[static_cast<std::size_t>(document)]; }
  /// Of tokens [begin, begin + starts.size()), a sequence: where in it the document of each begins, 0 for what began before it.
  void find_starts(std::int64_t begin, std::span<std::int32_t> starts) const;
  /// Of tokens [begin, begin + places), a sequence: how many the longest document has there.
  std::int64_t longest(std::int64_t begin, std::int64_t places) const;
  /// Of tokens [begin, begin + weights.size()) puts 0 into the places of those that documents begin with.
  void drop_first_tokens(std::int64_t begin, std::span<float> weights) const;
  Hash128 hash() const;

 private:
  /// The first document that begins at `token` or later.
  std::vector<std::int64_t>::const_iterator first_from(std::int64_t token) const;
  std::vector<std::int64_t> begins_;  ///< tokens, rising
  std::int64_t tokens_;               ///< of the file
};

/// Over sequences of so many places each that have these starts, the sum of the squares of their documents' lengths: pairs of tokens of one
/// document. Of a ring's ranks each has its places' share.
std::int64_t squares_of_documents(std::span<const std::int32_t> starts, std::int64_t places);

}  // namespace tessera
