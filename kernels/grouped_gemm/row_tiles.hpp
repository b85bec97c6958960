// Which rows a block of a grouped product has. Its launch has a block for every tile of rows that there can be, and each block finds out
// whose its tile is, or that it is nobody's: so the host need not know how many rows an expert has.
#pragma once
#include "kernels/cuda/device.hpp"
#include "kernels/grouped_gemm/grouped_gemm.hpp"

namespace tessera::kernels::cuda {

/// Up to `tile` rows of an expert; of expert E those that are nobody's. Of no rows: there is no such tile.
struct RowTile {
  std::int64_t expert = 0, row = 0;
  int rows = 0;
};

/// Tiles that there can be: one more than full ones for each expert, and for what is nobody's.
inline std::int64_t most_row_tiles(const GroupedGemm& p, std::int64_t tile) { return p.rows / tile + p.E + 1; }

/// Every warp looks for it, 32 experts at a time.
template <int tile>
__device__ RowTile row_tile(const GroupedGemm& p, std::int64_t number) {
  using namespace tessera::cuda;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  for (std::int64_t first = 0; first <= p.E; first += warp_lanes) {
    const std::int64_t e = first + lane;
    const std::int64_t begin = e <= p.E ? p.offsets[e] : p.rows, end = e < p.E ? p.offsets[e + 1] : p.rows;
    const auto tiles = static_cast<int>(ceil_div(end - begin, tile));
    int up_to = tiles;
    for (int by = 1; by < warp_lanes; by *= 2) {
      const int below = __shfl_up_sync(all_lanes, up_to, static_cast<unsigned>(by));
      if (lane >= by) up_to += below;
    }
    const unsigned after = __ballot_sync(all_lanes, number < up_to);
    if (after == 0) {
      number -= __shfl_sync(all_lanes, up_to, warp_lanes - 1);
      continue;
    }
    const int owner = __ffs(static_cast<int>(after)) - 1;
    const std::int64_t row = begin + (number - (up_to - tiles)) * tile;
    const auto rows = static_cast<int>(end - row < tile ? end - row : tile);
    return {first + owner, __shfl_sync(all_lanes, row, owner), __shfl_sync(all_lanes, rows, owner)};
  }
  return {};
}

}  // namespace tessera::kernels::cuda
