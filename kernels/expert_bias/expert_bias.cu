// Bound by memory: a row is read once, and written once where a bias is added. Each block finds out which rows of which expert it has
// (kernels/grouped_gemm/row_tiles.hpp), once for many rows. Not yet measured.
#include "kernels/cuda/reduce.hpp"
#include "kernels/cuda/vector.hpp"
#include "kernels/expert_bias/bias_slots.hpp"
#include "kernels/expert_bias/expert_bias_sizes.hpp"
#include "kernels/grouped_gemm/row_tiles.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;
using namespace expert_bias_sizes;

/// Warps of a block, which take its rows in turn. A lane has a vector of columns.
constexpr int bias_warps = block_threads / warp_lanes;
/// Rows of a block whose warps read whole rows.
constexpr int dot_rows = 32;

template <class P>
GroupedGemm rows_of_experts(const P& p) {
  return {.offsets = p.offsets, .rows = p.rows, .E = p.E, .N = p.N};
}

/// A launch over tiles of rows and, of each, tiles of columns.
struct BiasGrid {
  std::int64_t across;
  unsigned blocks = 0;
  BiasGrid(std::int64_t row_tiles, std::int64_t N, int elements) : across(ceil_div(N, std::int64_t{warp_lanes} * elements)) {
    TESSERA_CUDA_REQUIRE(row_tiles * across < std::int64_t{1} << 31);
    blocks = static_cast<unsigned>(row_tiles * across);
  }
  __device__ std::int64_t row_tile() const { return blockIdx.x / across; }
  /// This block's first column.
  __device__ std::int64_t column(int elements) const { return blockIdx.x % across * (warp_lanes * elements); }
};

template <class T, class Whole>
__global__ void __launch_bounds__(block_threads) add_bias_kernel(AddExpertBias p, GroupedGemm rows, BiasGrid grid) {
  constexpr int V = vector_elements<T>;
  const RowTile tile = row_tile<bias_rows>(rows, grid.row_tile());
  if (tile.expert >= p.E) return;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, warp = static_cast<int>(threadIdx.x) / warp_lanes;
  const std::int64_t j = grid.column(V) + lane * V;
  float bias[V];
  load<Whole>(bias, static_cast<const T*>(p.bias) + tile.expert * p.N, j, p.N);
  T* y = static_cast<T*>(p.y) + tile.row * p.N;
#pragma unroll 4
  for (int r = warp; r < tile.rows; r += bias_warps) {
    float value[V];
    load<Whole>(value, y + r * p.N, j, p.N);
#pragma unroll
    for (int e = 0; e < V; ++e) value[e] += bias[e];
    store<Whole>(y + r * p.N, j, p.N, value);
  }
}

/// partial (pieces,N): the sum over each piece of an expert's rows. A warp sums every eighth row, and their sums are added in the order of
/// the warps.
template <class T, class Whole>
__global__ void __launch_bounds__(block_threads) piece_sums_kernel(float* partial, ExpertBiasGradient p, GroupedGemm rows, BiasGrid grid) {
  constexpr int V = vector_elements<T>;
  __shared__ float of_warp[bias_warps][warp_lanes * V];
  const std::int64_t piece = grid.row_tile(), first = grid.column(V);
  const RowTile tile = row_tile<bias_rows>(rows, piece);
  if (tile.rows == 0 || tile.expert >= p.E) return;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, warp = static_cast<int>(threadIdx.x) / warp_lanes;
  const T* d_y = static_cast<const T*>(p.d_y) + tile.row * p.N;
  float sum[V] = {};
#pragma unroll 4
  for (int r = warp; r < tile.rows; r += bias_warps) {
    const float weight = bias_weight(p, tile.row + r);
    float value[V];
    load<Whole>(value, d_y + r * p.N, first + lane * V, p.N);
#pragma unroll
    for (int e = 0; e < V; ++e) sum[e] = fmaf(value[e], weight, sum[e]);
  }
#pragma unroll
  for (int e = 0; e < V; ++e) of_warp[warp][lane * V + e] = sum[e];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < warp_lanes * V && first + i < p.N; i += block_threads) {
    float total = 0;
    for (int w = 0; w < bias_warps; ++w) total += of_warp[w][i];
    partial[piece * p.N + first + i] = total;
  }
}

/// A thread a column of an expert: adds the sums of the expert's pieces in their order.
__global__ void __launch_bounds__(block_threads) add_pieces_kernel(ExpertBiasGradient p, const float* partial, std::int64_t across) {
  const std::int64_t expert = blockIdx.x / across, j = blockIdx.x % across * block_threads + threadIdx.x;
  const auto pieces = [&](std::int64_t e) { return static_cast<int>(ceil_div(p.offsets[e + 1] - p.offsets[e], bias_rows)); };
  int before = 0;
  for (std::int64_t e = threadIdx.x; e < expert; e += block_threads) before += pieces(e);
  before = block_sum(before);
  if (j >= p.N) return;
  const int count = pieces(expert);
  float sum = 0;
#pragma unroll 8
  for (int i = 0; i < count; ++i) sum += partial[(before + i) * p.N + j];
  float* d_bias = p.d_bias + expert * p.N + j;
  *d_bias = p.accumulate ? *d_bias + sum : sum;
}

/// A warp a row.
template <class T, class Whole>
__global__ void __launch_bounds__(block_threads) weigh_bias_kernel(WeighExpertBias p, GroupedGemm rows) {
  constexpr int V = vector_elements<T>;
  const RowTile tile = row_tile<dot_rows>(rows, blockIdx.x);
  if (tile.expert >= p.E) return;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, warp = static_cast<int>(threadIdx.x) / warp_lanes;
  const T* bias = static_cast<const T*>(p.bias) + tile.expert * p.N;
  for (int r = warp; r < tile.rows; r += bias_warps) {
    const std::int64_t row = tile.row + r, slot = bias_slot(p, row);
    if (slot < 0) continue;
    const T* d_y = static_cast<const T*>(p.d_y) + row * p.N;
    float sum = 0;
#pragma unroll 4
    for (std::int64_t i = static_cast<std::int64_t>(lane) * V; i < p.N; i += warp_lanes * V) {
      float x[V], y[V];
      load<Whole>(x, d_y, i, p.N), load<Whole>(y, bias, i, p.N);
#pragma unroll
      for (int e = 0; e < V; ++e) sum = fmaf(x[e], y[e], sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) p.d_weights[slot] += sum;
  }
}

}  // namespace

void add_expert_bias(const Context& context, const AddExpertBias& p) {
  if (p.rows == 0 || p.E == 0 || p.N == 0) return;
  const GroupedGemm rows = rows_of_experts(p);
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int V = vector_elements<T>;
    const BiasGrid grid(most_row_tiles(rows, bias_rows), p.N, V);
    with_whole(on_sixteen_bytes(p.y, p.bias) && whole_vectors(V, {p.N}), [&](auto whole) {
      launch(stream_of(context), grid.blocks, block_threads, 0, add_bias_kernel<T, decltype(whole)>, p, rows, grid);
    });
  });
}

void expert_bias_gradient(const Context& context, const ExpertBiasGradient& p) {
  if (p.E == 0 || p.N == 0) return;
  TESSERA_CUDA_REQUIRE(context.workspace.size() >= cuda::expert_bias_gradient_workspace_bytes(p));
  const GroupedGemm rows = rows_of_experts(p);
  auto* partial = reinterpret_cast<float*>(context.workspace.data());
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int V = vector_elements<T>;
    const BiasGrid grid(most_bias_pieces(p), p.N, V);
    with_whole(on_sixteen_bytes(p.d_y) && whole_vectors(V, {p.N}), [&](auto whole) {
      launch(stream_of(context), grid.blocks, block_threads, 0, piece_sums_kernel<T, decltype(whole)>, partial, p, rows, grid);
    });
  });
  const std::int64_t across = ceil_div(p.N, block_threads);
  TESSERA_CUDA_REQUIRE(p.E * across < std::int64_t{1} << 31);
  launch(stream_of(context), static_cast<unsigned>(p.E * across), block_threads, 0, add_pieces_kernel, p,
         static_cast<const float*>(partial), across);
}

void weigh_expert_bias(const Context& context, const WeighExpertBias& p) {
  if (p.rows == 0 || p.E == 0 || p.N == 0) return;
  const GroupedGemm rows = rows_of_experts(p);
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    with_whole(on_sixteen_bytes(p.d_y, p.bias) && whole_vectors(vector_elements<T>, {p.N}), [&](auto whole) {
      launch(stream_of(context), static_cast<unsigned>(most_row_tiles(rows, dot_rows)), block_threads, 0,
             weigh_bias_kernel<T, decltype(whole)>, p, rows);
    });
  });
}

}  // namespace tessera::kernels::cuda
