// Bound by memory: a row's squares, or dots, are summed by the group of threads that reads them; in the other passes a thread has the same
// columns of several rows, whose statistics the block has computed once. Forward reads a row twice and writes it once, backward reads it
// and its gradient twice and writes the latter. Not yet measured.
#include "kernels/wide_qk_norm/wide_qk_norm.hpp"

#include "kernels/cuda/reduce.hpp"
#include "kernels/cuda/row_blocks.hpp"
#include "kernels/cuda/vector.hpp"
#include "kernels/rmsnorm/formulas.hpp"
#include "kernels/wide_qk_norm/wide_qk_norm_sizes.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;
using namespace wide_qk_norm_sizes;

/// The blocks of a launch over rows: those of query features, then those of key features.
struct WideRows {
  int query_group, key_group;
  std::int64_t query_blocks, key_blocks;
  WideRows(const WideQkShape& s, int elements)
      : query_group(wide_group(s.Q, elements)),
        key_group(wide_group(s.K, elements)),
        query_blocks(ceil_div(s.M, block_threads / query_group)),
        key_blocks(ceil_div(s.M, block_threads / key_group)) {}
};

/// Of each row and section the sum of squares, or with Dots of d x (offset + weight): a group of threads has a row.
template <class T, class Whole, bool Dots, bool Offset>
__global__ void __launch_bounds__(block_threads) wide_sums_kernel(float* sums, WideQkDots p, WideRows rows) {
  constexpr int N = vector_elements<T>;
  const WideQkShape& s = p.shape;
  const bool of_query = blockIdx.x < rows.query_blocks;
  const int group = of_query ? rows.query_group : rows.key_group, lane = static_cast<int>(threadIdx.x) % group;
  const std::int64_t block = blockIdx.x - (of_query ? 0 : rows.query_blocks);
  const std::int64_t m = block * (block_threads / group) + static_cast<int>(threadIdx.x) / group;
  const std::int64_t held = m < s.M ? (of_query ? s.Q : s.K) : 0, at = m * s.stride + (of_query ? 0 : s.Q);
  const T *x = static_cast<const T*>(p.x) + at, *weight = static_cast<const T*>(of_query ? p.q_norm : p.k_norm);
  const T* d = Dots ? static_cast<const T*>(p.d) + at : nullptr;
  float sum = 0;
#pragma unroll 4
  for (std::int64_t i = static_cast<std::int64_t>(lane) * N; i < held; i += static_cast<std::int64_t>(group) * N) {
    float v[N];
    load<Whole>(v, x, i, held);
    if constexpr (Dots) {
      float g[N], w[N];
      load<Whole>(g, d, i, held), load<Whole>(w, weight, i, held);
#pragma unroll
      for (int e = 0; e < N; ++e) sum = norm::add_dot(g[e], norm::factor<Offset>(w[e], s.offset), v[e], sum);
    } else {
#pragma unroll
      for (int e = 0; e < N; ++e) sum = fmaf(v[e], v[e], sum);
    }
  }
  sum = group_sum(sum, group);
  if (lane == 0 && m < s.M) sums[2 * m + (of_query ? 0 : 1)] = sum;
}

/// The sum over the parts of one number of a row, in their order.
__device__ float wide_over_parts(const float* sums, const WideQkShape& s, std::int64_t m, int which) {
  float sum = 0;
  for (std::int64_t part = 0; part < s.parts; ++part) sum += sums[(part * s.M + m) * 2 + which];
  return sum;
}

/// Which columns of which rows this block has.
struct WideBlock {
  int group;
  std::int64_t row_block, begin, end;  ///< rows
  std::int64_t column;                 ///< the block's first, of its section
  __device__ WideBlock(const WideTiles& tiles, std::int64_t block, int elements) : group(tiles.group) {
    row_block = block / tiles.across, column = (block - row_block * tiles.across) * group * elements;
    begin = tiles.rows.begin(row_block), end = tiles.rows.end(row_block);
  }
  /// This thread's first column.
  __device__ std::int64_t own(int elements) const {
    return column + static_cast<std::int64_t>(static_cast<int>(threadIdx.x) % group) * elements;
  }
  /// f(m, statistic(m)) for the rows of this thread's group. Each statistic is computed once a block.
  template <class Statistic, class F>
  __device__ void for_rows(Statistic&& statistic, F&& f) const {
    __shared__ float2 of_row[block_threads];
    const int thread = static_cast<int>(threadIdx.x);
    for (std::int64_t first = begin; first < end; first += block_threads) {
      __syncthreads();  // those of the rows before have been read
      if (first + thread < end) of_row[thread] = statistic(first + thread);
      __syncthreads();
      const int count = static_cast<int>(end - first < block_threads ? end - first : block_threads);
      for (int in = thread / group; in < count; in += block_threads / group) f(first + in, of_row[in]);
    }
  }
};

/// Blocks of one launch over tiles.
struct WideForwardTiles {
  WideTiles query, key, others;  ///< others: features that are copied
};

/// out may be x: a thread has read what it writes.
template <class T, class Whole, bool Offset>
__global__ void __launch_bounds__(block_threads) wide_norm_kernel(WideQkNorm p, WideForwardTiles all) {
  constexpr int N = vector_elements<T>;
  const WideQkShape& s = p.shape;
  const std::int64_t queries = all.query.count(), keys = all.key.count();
  const int which = blockIdx.x < queries ? 0 : blockIdx.x < queries + keys ? 1 : 2;
  const WideBlock block(which == 0   ? all.query
                        : which == 1 ? all.key
                                     : all.others,
                        blockIdx.x - (which == 0   ? 0
                                      : which == 1 ? queries
                                                   : queries + keys),
                        N);
  const std::int64_t C = which == 0 ? s.Q : which == 1 ? s.K : s.stride - s.Q - s.K, at = which == 0 ? 0 : which == 1 ? s.Q : s.Q + s.K;
  const std::int64_t i = block.own(N), features = which == 0 ? s.all_queries() : s.all_keys();
  const T* x = static_cast<const T*>(p.x) + at;
  T* out = static_cast<T*>(p.out) + at;
  if (which == 2) {
    block.for_rows([](std::int64_t) { return float2{}; },
                   [&](std::int64_t m, float2) { store<Whole>(out + m * s.stride, i, C, load<Whole, N>(x + m * s.stride, i, C)); });
    return;
  }
  float weight[N];
  load<Whole>(weight, static_cast<const T*>(which == 0 ? p.q_norm : p.k_norm), i, C);
#pragma unroll
  for (int e = 0; e < N; ++e) weight[e] = norm::factor<Offset>(weight[e], s.offset);
  const auto statistic = [&](std::int64_t m) {
    return float2{norm::reciprocal_rms(wide_over_parts(p.sums, s, m, which), features, s.eps), 0};
  };
  block.for_rows(statistic, [&](std::int64_t m, float2 of) {
    float v[N];
    load<Whole>(v, x + m * s.stride, i, C);
#pragma unroll
    for (int e = 0; e < N; ++e) v[e] = norm::scaled(v[e], weight[e], of.x);
    store<Whole>(out + m * s.stride, i, C, v);
  });
}

/// A thread has read what it writes, and sums its columns' d_weight over its rows in registers.
template <class T, class Whole, bool Offset>
__global__ void __launch_bounds__(block_threads) wide_backward_kernel(WideQkNormBackward p, float* partial, WideBackwardTiles all) {
  constexpr int N = vector_elements<T>;
  const WideQkShape& s = p.shape;
  const std::int64_t queries = all.query.count();
  const bool of_query = blockIdx.x < queries;
  const int which = of_query ? 0 : 1;
  const WideBlock block(of_query ? all.query : all.key, blockIdx.x - (of_query ? 0 : queries), N);
  const std::int64_t C = of_query ? s.Q : s.K, features = of_query ? s.all_queries() : s.all_keys(), i = block.own(N);
  const T* x = static_cast<const T*>(p.x) + (of_query ? 0 : s.Q);
  T* d = static_cast<T*>(p.d) + (of_query ? 0 : s.Q);
  float weight[N], d_weight[N] = {};
  load<Whole>(weight, static_cast<const T*>(of_query ? p.q_norm : p.k_norm), i, C);
#pragma unroll
  for (int e = 0; e < N; ++e) weight[e] = norm::factor<Offset>(weight[e], s.offset);
  const auto statistic = [&](std::int64_t m) {
    const float rstd = norm::reciprocal_rms(wide_over_parts(p.sums, s, m, which), features, s.eps);
    return float2{rstd, norm::along_x(wide_over_parts(p.dots, s, m, which), features, rstd)};
  };
  block.for_rows(statistic, [&](std::int64_t m, float2 of) {
    float g[N], v[N];
    load<Whole>(g, d + m * s.stride, i, C), load<Whole>(v, x + m * s.stride, i, C);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      d_weight[e] = norm::add_weight_gradient(g[e], v[e], of.x, d_weight[e]);
      g[e] = norm::gradient(g[e], weight[e], of.x, v[e] * of.y);
    }
    store<Whole>(d + m * s.stride, i, C, g);
  });
  partial += (of_query ? 0 : all.query.rows.count * s.Q) + block.row_block * C;
  sum_over_groups(d_weight, block.group, [&](int lane, int e, float sum) {
    const std::int64_t column = block.column + lane * N + e;
    if (column < C) partial[column] = sum;
  });
}

unsigned wide_grid(std::int64_t blocks) {
  TESSERA_CUDA_REQUIRE(blocks < std::int64_t{1} << 31);
  return static_cast<unsigned>(blocks);
}
template <class T>
bool whole_wide_rows(const WideQkShape& s) {
  return whole_vectors(vector_elements<T>, {s.Q, s.K, s.stride});
}

/// With Dots of p, else of p.x squared.
template <class T, bool Dots>
void launch_wide_sums(const Context& context, float* sums, const WideQkDots& p) {
  const WideRows rows(p.shape, vector_elements<T>);
  with_whole(on_sixteen_bytes(p.d, p.x, p.q_norm, p.k_norm) && whole_wide_rows<T>(p.shape), [&](auto whole) {
    using W = decltype(whole);
    auto* kernel = wide_sums_kernel<T, W, Dots, false>;
    if constexpr (Dots) {
      if (p.shape.offset != 0) kernel = wide_sums_kernel<T, W, true, true>;
    }
    launch(stream_of(context), wide_grid(rows.query_blocks + rows.key_blocks), block_threads, 0, kernel, sums, p, rows);
  });
}

template <class T>
void launch_wide_norm(const Context& context, const WideQkNorm& p) {
  constexpr std::int64_t any_blocks = std::int64_t{1} << 30;
  const WideQkShape& s = p.shape;
  const WideForwardTiles tiles{WideTiles(s, s.Q, any_blocks), WideTiles(s, s.K, any_blocks),
                               WideTiles(s, p.out == p.x ? 0 : s.stride - s.Q - s.K, any_blocks)};
  with_whole(on_sixteen_bytes(p.out, p.x, p.q_norm, p.k_norm) && whole_wide_rows<T>(s), [&](auto whole) {
    using W = decltype(whole);
    auto* kernel = s.offset != 0 ? wide_norm_kernel<T, W, true> : wide_norm_kernel<T, W, false>;
    launch(stream_of(context), wide_grid(tiles.query.count() + tiles.key.count() + tiles.others.count()), block_threads, 0, kernel, p,
           tiles);
  });
}

template <class T>
void launch_wide_backward(const Context& context, const WideQkNormBackward& p) {
  const WideQkShape& s = p.shape;
  const WideBackwardTiles tiles = wide_backward_tiles(s);
  auto* partial = reinterpret_cast<float*>(context.workspace.data());  // (query's row blocks, Q), then (key's row blocks, K)
  with_whole(on_sixteen_bytes(p.d, p.x, p.q_norm, p.k_norm) && whole_wide_rows<T>(s), [&](auto whole) {
    using W = decltype(whole);
    auto* kernel = s.offset != 0 ? wide_backward_kernel<T, W, true> : wide_backward_kernel<T, W, false>;
    launch(stream_of(context), wide_grid(tiles.query.count() + tiles.key.count()), block_threads, 0, kernel, p, partial, tiles);
  });
  add_partial_sums(stream_of(context), p.d_q_norm, partial, tiles.query.rows.count, s.Q);
  add_partial_sums(stream_of(context), p.d_k_norm, partial + tiles.query.rows.count * s.Q, tiles.key.rows.count, s.K);
}

bool wide_fits(const WideQkShape& s) { return s.Q > 0 && s.K > 0 && s.stride >= s.Q + s.K && s.parts > 0; }

}  // namespace

void wide_qk_sums(const Context& context, const WideQkSums& p) {
  if (p.shape.M == 0) return;
  TESSERA_CUDA_REQUIRE(wide_fits(p.shape));
  with_float_type(p.shape.dtype,
                  [&](auto type) { launch_wide_sums<decltype(type), false>(context, p.sums, {.x = p.x, .shape = p.shape}); });
}

void wide_qk_norm(const Context& context, const WideQkNorm& p) {
  if (p.shape.M == 0) return;
  TESSERA_CUDA_REQUIRE(wide_fits(p.shape));
  with_float_type(p.shape.dtype, [&](auto type) { launch_wide_norm<decltype(type)>(context, p); });
}

void wide_qk_dots(const Context& context, const WideQkDots& p) {
  if (p.shape.M == 0) return;
  TESSERA_CUDA_REQUIRE(wide_fits(p.shape));
  with_float_type(p.shape.dtype, [&](auto type) { launch_wide_sums<decltype(type), true>(context, p.dots, p); });
}

void wide_qk_norm_backward(const Context& context, const WideQkNormBackward& p) {
  if (p.shape.M == 0) return;
  TESSERA_CUDA_REQUIRE(wide_fits(p.shape));
  TESSERA_CUDA_REQUIRE(context.workspace.size() >= cuda::wide_qk_norm_backward_workspace_bytes(p));
  with_float_type(p.shape.dtype, [&](auto type) { launch_wide_backward<decltype(type)>(context, p); });
}

}  // namespace tessera::kernels::cuda
