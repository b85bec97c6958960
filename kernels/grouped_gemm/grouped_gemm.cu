// One launch for all experts, whose grid does not depend on how many rows they have: so it can be part of a CUDA graph. These are the
// products for any shape, element type and GPU, by tiles of 64 x 64; grouped_gemm_warpgroup.cu has those for Hopper. Bound by arithmetic,
// and of whole vectors by the second-level cache: a tile does 32 flops for each byte that it reads. Not yet measured.
#include "kernels/grouped_gemm/grouped_gemm.hpp"

#include "kernels/grouped_gemm/grouped_gemm_warpgroup.hpp"
#include "kernels/grouped_gemm/row_tiles.hpp"
#include "kernels/grouped_gemm/tile_product.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tile_product;

template <class T, bool b_transposed, bool wide>
__global__ void __launch_bounds__(TileProduct<T, false, !b_transposed, wide>::threads) product_kernel(GroupedGemm p) {
  const RowTile rows = row_tile<tile>(p, blockIdx.x);
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
  TESSERA_CUDA_REQUIRE(p.E > 0 && p.N > 0 && p.K > 0 && ceil_div(p.N, tile) < 65536 && most_row_tiles(p, tile) < std::int64_t{1} << 31);
  if (p.rows == 0) return;
  if (takes_warpgroup(p)) return grouped_gemm_warpgroup(context, p);
  const dim3 grid(static_cast<unsigned>(most_row_tiles(p, tile)), tiles_of(p.N));  // neighbours share the columns of a matrix
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
  if (takes_warpgroup(p)) return grouped_weight_gradient_warpgroup(context, p);
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
