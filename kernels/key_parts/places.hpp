// Where the parts of a key head lie. Lengths are in elements of any size.
#pragma once
#include "base/types.hpp"
#include "kernels/key_parts/key_parts.hpp"

namespace tessera::kernels::key_parts {

struct Places {
  std::int64_t M, queries, keys, part;  ///< elements of the query heads of a row, of its key head, and of a part of that
  std::int64_t first, sharing;          ///< ranks that have the head

  TESSERA_BOTH std::int64_t made_width() const { return queries + 2 * part; }
  TESSERA_BOTH std::int64_t width() const { return queries + 2 * keys; }
  /// Of a token's key and value heads, 2 * keys elements, the element `i` lies here among the parts of all ranks.
  TESSERA_BOTH std::int64_t among_parts(std::int64_t token, std::int64_t i) const {
    const std::int64_t kind = i < keys ? 0 : 1;
    const auto feature = static_cast<std::uint32_t>(i - kind * keys), of_part = static_cast<std::uint32_t>(part), n = feature / of_part;
    return ((first + n) * M + token) * 2 * part + kind * part + (feature - n * of_part);
  }
  /// Of a part, 2 * part elements, of a rank that has the head, the element `i` lies here in a row.
  TESSERA_BOTH std::int64_t in_row(std::int64_t rank, std::int64_t i) const {
    const std::int64_t kind = i < part ? 0 : 1;
    return queries + kind * keys + (rank - first) * part + (i - kind * part);
  }
  TESSERA_BOTH bool has(std::int64_t rank) const { return rank >= first && rank < first + sharing; }
};

inline bool divides(const KeyParts& p) {
  return p.sharing > 0 && p.D % p.sharing == 0 && p.N % p.sharing == 0 && p.first % p.sharing == 0 && p.first >= 0 && p.first < p.N &&
         p.N * p.M < std::int64_t{1} << 32;
}

/// With elements of `unit` bytes.
inline Places places_of(const KeyParts& p, std::int64_t unit) {
  const auto units = [&](std::int64_t elements) { return elements * static_cast<std::int64_t>(size_of(p.dtype)) / unit; };
  return {.M = p.M, .queries = units(p.H * p.D), .keys = units(p.D), .part = units(p.part()), .first = p.first, .sharing = p.sharing};
}

}  // namespace tessera::kernels::key_parts
