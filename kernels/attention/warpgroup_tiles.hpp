// What the bf16 attention kernels for Hopper share: tiles of rows in panels, where the products of a warpgroup read them.
#pragma once
#include "kernels/attention/tensor_core_tiles.hpp"
#include "kernels/cuda/warpgroup.hpp"

namespace tessera::kernels::cuda::warpgroup_tiles {

using namespace tensor_core_tiles;

// Two warpgroups of 64 rows each.
inline constexpr int warpgroups = 2, block_threads = warpgroups * warpgroup_lanes;

/// Like load_rows, into panels.
template <int Dp, int rows, bool wide>
__device__ __forceinline__ void load_panels(bf16* tile, const bf16* from, std::int64_t stride, int valid, int D) {
  constexpr int chunks = Dp / 8, step = block_threads / chunks;
  static_assert(rows % step == 0);
  const int thread = hidden(threadIdx.x), chunk = thread % chunks, first = thread / chunks;
  const int bytes = min(max(2 * (D - 8 * chunk), 0), 16);
  const bf16* source = from + first * stride + 8 * chunk;  // not read where no bytes are asked for
#pragma unroll
  for (int i = 0; i < rows; i += step) {
    copy_chunk<wide>(tile + panel_chunk_at<rows>(first + i, chunk), source, first + i < valid ? bytes : 0);
    source += step * stride;
  }
}

}  // namespace tessera::kernels::cuda::warpgroup_tiles
