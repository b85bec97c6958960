// Where the heads of a block's row lie among those of all ranks. Lengths are in elements of any size.
#pragma once
#include "base/types.hpp"
#include "kernels/head_blocks/head_blocks.hpp"

namespace tessera::kernels::head_blocks {

struct Places {
  std::int64_t T, N, queries, keys;  ///< elements of a rank's query heads in a row, and of its key heads

  TESSERA_BOTH std::int64_t block_width() const { return queries + 2 * keys; }
  TESSERA_BOTH std::int64_t width() const { return N * block_width(); }
  /// Rows of blocks, fewer than 2^32, are counted as (B,N,T). Of such a row the element `i` lies here among rows of all heads.
  TESSERA_BOTH std::int64_t among_rows(std::int64_t block_row, std::int64_t i) const {
    const auto counted = static_cast<std::uint32_t>(block_row), tokens = static_cast<std::uint32_t>(T),
               ranks = static_cast<std::uint32_t>(N);
    const std::uint32_t block = counted / tokens, b = block / ranks;
    const std::int64_t n = block - b * ranks, row = b * T + (counted - block * tokens);
    const std::int64_t kind = i < queries ? 0 : i < queries + keys ? 1 : 2;
    const std::int64_t before = kind == 0 ? 0 : queries + (kind - 1) * keys;  // in a block's row
    return row * width() + N * before + n * (kind == 0 ? queries : keys) + (i - before);
  }
};

/// With elements of `unit` bytes.
inline Places places_of(const HeadBlocks& p, std::int64_t unit) {
  const std::int64_t head = p.D * static_cast<std::int64_t>(size_of(p.dtype)) / unit;
  return {.T = p.T, .N = p.N, .queries = p.H / p.N * head, .keys = p.G / p.N * head};
}

}  // namespace tessera::kernels::head_blocks
