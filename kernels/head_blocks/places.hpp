// Where the heads of a block's row lie among those of all ranks. Lengths are in elements of any size.
#pragma once
#include <algorithm>

#include "base/types.hpp"
#include "kernels/head_blocks/head_blocks.hpp"

namespace tessera::kernels::head_blocks {

struct Places {
  std::int64_t T, N, queries, keys;  ///< elements of a rank's query heads in a row, and of its key heads
  std::int64_t sharing;              ///< ranks that have the same key head

  TESSERA_BOTH std::int64_t block_width() const { return queries + 2 * keys; }
  TESSERA_BOTH std::int64_t all_keys() const { return N / sharing * keys; }
  TESSERA_BOTH std::int64_t width() const { return N * queries + 2 * all_keys(); }
  /// Rows of blocks, fewer than 2^32, are counted as (B,N,T). Of such a row the element `i` lies here among rows of all heads.
  TESSERA_BOTH std::int64_t among_rows(std::int64_t block_row, std::int64_t i) const {
    const auto counted = static_cast<std::uint32_t>(block_row), tokens = static_cast<std::uint32_t>(T),
               ranks = static_cast<std::uint32_t>(N);
    const std::uint32_t block = counted / tokens, b = block / ranks, n = block - b * ranks;
    const std::int64_t row = (b * T + (counted - block * tokens)) * width();
    if (i < queries) return row + n * queries + i;
    const std::int64_t kind = i < queries + keys ? 0 : 1, group = n / static_cast<std::uint32_t>(sharing);
    return row + N * queries + kind * all_keys() + group * keys + (i - queries - kind * keys);
  }
};

inline bool divides(const HeadBlocks& p) {
  return p.N > 0 && p.H % p.N == 0 && (p.G % p.N == 0 || p.N % p.G == 0) && p.B * p.N * p.T < std::int64_t{1} << 32;
}

/// With elements of `unit` bytes.
inline Places places_of(const HeadBlocks& p, std::int64_t unit) {
  const std::int64_t head = p.D * static_cast<std::int64_t>(size_of(p.dtype)) / unit;
  const bool shared = p.G > 0 && p.G < p.N;
  return {.T = p.T, .N = p.N, .queries = p.H / p.N * head, .keys = (shared ? 1 : p.G / p.N) * head, .sharing = shared ? p.N / p.G : 1};
}

}  // namespace tessera::kernels::head_blocks
