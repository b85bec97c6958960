// Where the heads of a block's row lie among those of all ranks. Lengths are in elements of any size.
#pragma once
#include <algorithm>

#include "base/types.hpp"
#include "kernels/head_blocks/head_blocks.hpp"

namespace tessera::kernels::head_blocks {

struct Places {
  std::int64_t T, N, queries, keys, values;  ///< elements of a rank's query heads in a row, of its key heads and of its value heads
  std::int64_t sharing;                      ///< ranks that have the same key head

  TESSERA_BOTH std::int64_t block_width() const { return queries + keys + values; }
  TESSERA_BOTH std::int64_t width() const { return N * queries + N / sharing * (keys + values); }
  /// Rows of blocks, fewer than 2^32, are counted as (B,N,T). Of such a row the element `i` lies here among rows of all heads.
  TESSERA_BOTH std::int64_t among_rows(std::int64_t block_row, std::int64_t i) const {
    const auto counted = static_cast<std::uint32_t>(block_row), tokens = static_cast<std::uint32_t>(T),
               ranks = static_cast<std::uint32_t>(N);
    const std::uint32_t block = counted / tokens, b = block / ranks, n = block - b * ranks;
    const std::int64_t row = (b * T + (counted - block * tokens)) * width();
    if (i < queries) return row + n * queries + i;
    const std::int64_t group = n / static_cast<std::uint32_t>(sharing), of_keys = i - queries;
    if (of_keys < keys) return row + N * queries + group * keys + of_keys;
    return row + N * queries + N / sharing * keys + group * values + (of_keys - keys);
  }
};

inline bool divides(const HeadBlocks& p) {
  return p.N > 0 && p.H % p.N == 0 && (p.G % p.N == 0 || p.N % p.G == 0) && p.B * p.N * p.T < std::int64_t{1} << 32;
}

inline std::int64_t value_dim(const HeadBlocks& p) { return p.Dv == 0 ? p.D : p.Dv; }

/// With elements of `unit` bytes.
inline Places places_of(const HeadBlocks& p, std::int64_t unit) {
  const auto element = static_cast<std::int64_t>(size_of(p.dtype));
  const std::int64_t head = p.D * element / unit, value = value_dim(p) * element / unit;
  const bool shared = p.G > 0 && p.G < p.N;
  const std::int64_t groups = shared ? 1 : p.G / p.N;
  return {
      .T = p.T, .N = p.N, .queries = p.H / p.N * head, .keys = groups * head, .values = groups * value, .sharing = shared ? p.N / p.G : 1};
}

}  // namespace tessera::kernels::head_blocks
