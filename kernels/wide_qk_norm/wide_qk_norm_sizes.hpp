// How the GPU's QK-norm of the whole width lays features over threads and blocks.
#pragma once
#include "kernels/cuda/sizes.hpp"
#include "kernels/wide_qk_norm/wide_qk_norm.hpp"

namespace tessera::kernels::cuda::wide_qk_norm_sizes {

/// Threads of C features of a row, a power of two up to a block: each has a vector of them, or one in each of several turns or tiles.
inline int wide_group(std::int64_t C, std::int64_t elements) {
  int group = 1;
  while (group < tessera::cuda::block_threads && group * elements < C) group *= 2;
  return group;
}

/// Query or key features over blocks: a block has a tile of columns, one vector a thread, and one of the row blocks.
struct WideTiles {
  int group;
  std::int64_t across;  ///< tiles in a row
  tessera::cuda::RowBlocks rows;
  WideTiles(const WideQkShape& s, std::int64_t C, std::int64_t most_blocks)
      : group(wide_group(C, tessera::cuda::vector_elements_of(s.dtype))),
        across(ceil_div(C, std::int64_t{group} * tessera::cuda::vector_elements_of(s.dtype))),
        rows(s.M, 8 * (tessera::cuda::block_threads / group), std::max<std::int64_t>(1, most_blocks / std::max<std::int64_t>(1, across))) {}
  TESSERA_BOTH std::int64_t count() const { return across * rows.count; }
};

/// Those of backward's one launch. What fits into an H200 at once (four blocks an SM), shared out so that all blocks have as much to do.
struct WideBackwardTiles {
  WideTiles query, key;
};
inline WideBackwardTiles wide_backward_tiles(const WideQkShape& s) {
  const auto of = [&](std::int64_t C) { return WideTiles(s, C, std::max<std::int64_t>(1, 528 * C / (s.Q + s.K))); };
  return {of(s.Q), of(s.K)};
}

}  // namespace tessera::kernels::cuda::wide_qk_norm_sizes
