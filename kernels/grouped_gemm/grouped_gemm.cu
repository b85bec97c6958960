// One launch for all experts: its grid has a block for every tile of rows that there can be, and each block finds out whose its tile is, or
// that it is nobody's. So the host need not know how many rows an expert has, and the launch can be part of a CUDA graph. Bound by
// arithmetic. Not yet measured.
#include "kernels/grouped_gemm/grouped_gemm.hpp"

#include "kernels/grouped_gemm/tile_product.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tile_product;

/// Up to 64 rows of an expert; of expert E those that are nobody's. Of no rows: there is no such tile.
struct RowTile {
  std::int64_t expert = 0, row = 0;
  int rows = 0;
};

/// Tiles that there can be: one more than full ones for each expert, and for what is nobody's.
std::int64_t most_row_tiles(const GroupedGemm& p) { return p.rows / tile + p.E + 1; }

/// Every warp looks for it, 32 experts at a time.
__device__ RowTile row_tile(const GroupedGemm& p, std::int64_t number) {
  const int lane = tensor_core_tiles::lane_index();
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

template <class T, bool b_transposed, bool wide>
__global__ void __launch_bounds__(TileProduct<T, false, !b_transposed, wide>::threads) product_kernel(GroupedGemm p) {
  const RowTile rows = row_tile(p, blockIdx.x);
  if (rows.rows == 0) return;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * tile;
  const int columns = static_cast<int>(p.N - column < tile ? p.N - column : tile);
  const std::int64_t stride = p.from_c();
  T* c = static_cast<T*>(p.c) + rows.row * stride + column;
  if (rows.expert == p.E) {
    for (int i = static_cast<int>(threadIdx.x); i < rows.rows * columns && !p.accumulate; i += static_cast<int>(blockDim.x))
      c[i / columns * stride + i % columns] = T{};
    return;
  }
  const T* a = static_cast<const T*>(p.a) + rows.row * p.from_a();
  const T* b = static_cast<const T*>(p.b) + rows.expert * p.N * p.K + (b_transposed ? column * p.K : column);
  TileProduct<T, false, !b_transposed, wide> product;
  product.run({a, p.from_a(), rows.rows}, {b, b_transposed ? p.K : p.N, columns}, p.K);
  product.each([&](int i, int j, float sum) {
    if (i >= rows.rows || j >= columns) return;
    T& to = c[i * stride + j];
    to = rounded<T>(p.accumulate ? to_float(to) + p.scale * sum : p.scale * sum);
  });
}

template <class T, bool wide>
__global__ void __launch_bounds__(TileProduct<T, true, true, wide>::threads) gradient_kernel(GroupedWeightGradient p) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * tile, row = static_cast<std::int64_t>(blockIdx.y) * tile;
  const int columns = static_cast<int>(p.K - column < tile ? p.K - column : tile),
            rows = static_cast<int>(p.N - row < tile ? p.N - row : tile);
  const std::int64_t expert = blockIdx.z, begin = p.offsets[expert], end = p.offsets[expert + 1];
  if (begin == end && p.accumulate) return;
  TileProduct<T, true, true, wide> product;
  product.run({static_cast<const T*>(p.d_y) + begin * p.from_d_y() + row, p.from_d_y(), rows},
              {static_cast<const T*>(p.x) + begin * p.K + column, p.K, columns}, end - begin);
  float* d_w = p.d_w + (expert * p.N + row) * p.K + column;
  product.each([&](int i, int j, float sum) {
    if (i >= rows || j >= columns) return;
    float& at = d_w[i * p.K + j];
    at = p.accumulate ? at + sum : sum;
  });
}

unsigned tiles_of(std::int64_t n) { return static_cast<unsigned>(ceil_div(n, tile)); }

}  // namespace

void grouped_gemm(const Context& context, const GroupedGemm& p) {
  TESSERA_CUDA_REQUIRE(p.E > 0 && p.N > 0 && p.K > 0 && ceil_div(p.N, tile) < 65536 && most_row_tiles(p) < std::int64_t{1} << 31);
  if (p.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(most_row_tiles(p)), tiles_of(p.N));  // neighbours share the columns of a matrix
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    const bool wide = on_sixteen_bytes(p.a, p.b) && whole_vectors(vector_elements<T>, {p.N, p.K, p.from_a()});
    with_whole(wide, [&](auto whole) {
      with_whole(p.b_transposed, [&](auto transposed) {
        constexpr bool is_transposed = decltype(transposed)::value, is_wide = decltype(whole)::value;
        launch(stream_of(context), grid, TileProduct<T, false, !is_transposed, is_wide>::threads, 0,
               product_kernel<T, is_transposed, is_wide>, p);
      });
    });
  });
}

void grouped_weight_gradient(const Context& context, const GroupedWeightGradient& p) {
  TESSERA_CUDA_REQUIRE(p.E > 0 && p.E < 65536 && p.N > 0 && p.K > 0 && ceil_div(p.N, tile) < 65536);
  const dim3 grid(tiles_of(p.K), tiles_of(p.N), static_cast<unsigned>(p.E));
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    const bool wide = on_sixteen_bytes(p.d_y, p.x) && whole_vectors(vector_elements<T>, {p.N, p.K, p.from_d_y()});
    with_whole(wide, [&](auto whole) {
      constexpr bool is_wide = decltype(whole)::value;
      launch(stream_of(context), grid, TileProduct<T, true, true, is_wide>::threads, 0, gradient_kernel<T, is_wide>, p);
    });
  });
}

}  // namespace tessera::kernels::cuda
