// Where the parts of a key head lie. Lengths are in elements of any size.
#pragma once
#include "base/types.hpp"
#include "kernels/key_parts/key_parts.hpp"

namespace tessera::kernels::key_parts {

struct Places {
  std::int64_t M, queries, keys, values;  ///< elements of the query heads of a row, of its key head and of its value head
  std::int64_t key_part, value_part;      ///< and of a rank's part of both
  std::int64_t first, sharing;            ///< ranks that have the head

  TESSERA_BOTH std::int64_t part() const { return key_part + value_part; }
  TESSERA_BOTH std::int64_t own_qkv_width() const { return queries + part(); }
  TESSERA_BOTH std::int64_t width() const { return queries + keys + values; }
  /// Of a token's key and value heads, the element `i` lies here among the parts of all ranks.
  TESSERA_BOTH std::int64_t among_parts(std::int64_t token, std::int64_t i) const {
    const bool is_key = i < keys;
    const auto feature = static_cast<std::uint32_t>(is_key ? i : i - keys),
               of_part = static_cast<std::uint32_t>(is_key ? key_part : value_part), n = feature / of_part;
    return ((first + n) * M + token) * part() + (is_key ? 0 : key_part) + (feature - n * of_part);
  }
  /// Of a part of a rank that has the head, the element `i` lies here in a row.
  TESSERA_BOTH std::int64_t in_row(std::int64_t rank, std::int64_t i) const {
    if (i < key_part) return queries + (rank - first) * key_part + i;
    return queries + keys + (rank - first) * value_part + (i - key_part);
  }
  TESSERA_BOTH bool has(std::int64_t rank) const { return rank >= first && rank < first + sharing; }
};

inline bool divides(const KeyParts& p) {
  return p.sharing > 0 && p.D % p.sharing == 0 && p.value_dim() % p.sharing == 0 && p.N % p.sharing == 0 && p.first % p.sharing == 0 &&
         p.first >= 0 && p.first < p.N && p.N * p.M < std::int64_t{1} << 32;
}

/// With elements of `unit` bytes.
inline Places places_of(const KeyParts& p, std::int64_t unit) {
  const auto units = [&](std::int64_t elements) { return elements * static_cast<std::int64_t>(size_of(p.dtype)) / unit; };
  return {.M = p.M,
          .queries = units(p.H * p.D),
          .keys = units(p.D),
          .values = units(p.value_dim()),
          .key_part = units(p.D / p.sharing),
          .value_part = units(p.value_dim() / p.sharing),
          .first = p.first,
          .sharing = p.sharing};
}

}  // namespace tessera::kernels::key_parts
