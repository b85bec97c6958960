// Passes over memory: each is bound by the bytes it moves, none has been measured yet.
#include "kernels/elementwise/elementwise.hpp"

#include "kernels/cuda/row_blocks.hpp"
#include "kernels/cuda/vector.hpp"
#include "kernels/elementwise/elementwise_sizes.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

/// Reads 2 and writes 1 element of T.
template <class T, class Whole>
__global__ void __launch_bounds__(block_threads) add_kernel(T* out, const T* x, const T* y, std::int64_t n) {
  constexpr int N = vector_elements<T>, unroll = 2;
  const Tile<N, unroll> tile;
  Vector<T, N> a[unroll], b[unroll];
#pragma unroll
  for (int u = 0; u < unroll; ++u) a[u] = load<Whole, N>(x, tile.at(u), n), b[u] = load<Whole, N>(y, tile.at(u), n);
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    std::conditional_t<std::is_integral_v<T>, T, float> sum[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if constexpr (std::is_integral_v<T>)
        sum[k] = static_cast<T>(static_cast<std::uint64_t>(a[u].value[k]) + static_cast<std::uint64_t>(b[u].value[k]));
      else
        sum[k] = to_float(a[u].value[k]) + to_float(b[u].value[k]);
    }
    if constexpr (std::is_integral_v<T>) {
      Vector<T, N> whole;
#pragma unroll
      for (int k = 0; k < N; ++k) whole.value[k] = sum[k];
      store<Whole>(out, tile.at(u), n, whole);
    } else {
      store<Whole>(out, tile.at(u), n, sum);
    }
  }
}

/// Reads 2 elements of T, or without x 1, and writes 1.
template <bool has_x, class T, class Whole>
__global__ void __launch_bounds__(block_threads) add_scaled_kernel(AddScaled p) {
  constexpr int N = vector_elements<T>, unroll = 2;
  const Tile<N, unroll> tile;
  const T *x = static_cast<const T*>(p.x), *y = static_cast<const T*>(p.y);
  Vector<T, N> a[unroll], b[unroll];
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    if constexpr (has_x) a[u] = load<Whole, N>(x, tile.at(u), p.n);
    b[u] = load<Whole, N>(y, tile.at(u), p.n);
  }
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    float sum[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if constexpr (has_x)
        sum[k] = fmaf(p.scale, to_float(b[u].value[k]), to_float(a[u].value[k]));
      else
        sum[k] = p.scale * to_float(b[u].value[k]);
    }
    store<Whole>(static_cast<T*>(p.out), tile.at(u), p.n, sum);
  }
}

/// Reads P elements of T, or one more, and writes one. Vectors are whole where n is a multiple of theirs: parts begin at multiples of n.
template <class T, class Whole>
__global__ void __launch_bounds__(block_threads) sum_in_order_kernel(SumInOrder p) {
  constexpr int N = vector_elements<T>;
  const std::int64_t at = Tile<N, 1>{}.at(0);
  T* out = static_cast<T*>(p.out);
  float sum[N], next[N];
  load<Whole>(sum, static_cast<const T*>(p.parts), at, p.n);
#pragma unroll 4
  for (std::int64_t k = 1; k < p.P; ++k) {
    load<Whole>(next, static_cast<const T*>(p.parts) + k * p.n, at, p.n);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += next[i];
  }
  if (p.accumulate) {
    load<Whole>(next, static_cast<const T*>(out), at, p.n);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += next[i];
  }
  store<Whole>(out, at, p.n, sum);
}

/// Reads an element of In and writes one of Out.
template <class Out, class In, class Whole>
__global__ void __launch_bounds__(block_threads) cast_kernel(Out* out, const In* x, std::int64_t n) {
  constexpr int N = std::min(vector_elements<Out>, vector_elements<In>), unroll = 4;
  const Tile<N, unroll> tile;
  Vector<In, N> a[unroll];
#pragma unroll
  for (int u = 0; u < unroll; ++u) a[u] = load<Whole, N>(x, tile.at(u), n);
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    float value[N];
#pragma unroll
    for (int k = 0; k < N; ++k) value[k] = to_float(a[u].value[k]);
    store<Whole>(out, tile.at(u), n, value);
  }
}

constexpr int row_shares = 8;

/// Reads M N elements of T. Block (x, y) has 32 vectors of columns and row block y; thread (x, y) sums the rows y, y + 8, ... of them, and
/// the eight sums are added in the order of y.
template <class T, class Whole>
__global__ void __launch_bounds__(warp_lanes* row_shares) column_sums_kernel(float* partial, const T* x, RowBlocks blocks, std::int64_t N) {
  constexpr int V = vector_elements<T>;
  __shared__ float of_share[row_shares][warp_lanes * V];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * warp_lanes * V, j = first + threadIdx.x * V;
  float sum[V] = {};
  if (j < N) {
#pragma unroll 4
    for (std::int64_t m = blocks.begin(blockIdx.y) + threadIdx.y; m < blocks.end(blockIdx.y); m += row_shares) {
      float value[V];
      load<Whole>(value, x + m * N, j, N);
#pragma unroll
      for (int k = 0; k < V; ++k) sum[k] += value[k];
    }
  }
#pragma unroll
  for (int k = 0; k < V; ++k) of_share[threadIdx.y][threadIdx.x * V + k] = sum[k];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.y * warp_lanes + threadIdx.x); i < warp_lanes * V; i += warp_lanes * row_shares) {
    float total = 0;
    for (int y = 0; y < row_shares; ++y) total += of_share[y][i];
    if (first + i < N) partial[blockIdx.y * N + first + i] = total;
  }
}

}  // namespace

void add(const Context& context, void* out, const void* x, const void* y, std::int64_t n, DType dtype) {
  if (n == 0) return;
  auto add_values = [&](auto type) {
    using T = decltype(type);
    constexpr int N = vector_elements<T>;
    with_whole(on_sixteen_bytes(out, x, y) && whole_vectors(N, {n}), [&](auto whole) {
      launch(stream_of(context), Tile<N, 2>::blocks(n), block_threads, 0, add_kernel<T, decltype(whole)>, static_cast<T*>(out),
             static_cast<const T*>(x), static_cast<const T*>(y), n);
    });
  };
  if (dtype == DType::i64) return add_values(std::int64_t{});
  with_float_type(dtype, add_values);
}

void add_scaled(const Context& context, const AddScaled& p) {
  if (p.n == 0) return;
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = vector_elements<T>;
    with_whole(on_sixteen_bytes(p.out, p.x, p.y) && whole_vectors(N, {p.n}), [&](auto whole) {
      auto* kernel = p.x ? add_scaled_kernel<true, T, decltype(whole)> : add_scaled_kernel<false, T, decltype(whole)>;
      launch(stream_of(context), Tile<N, 2>::blocks(p.n), block_threads, 0, kernel, p);
    });
  });
}

void sum_in_order(const Context& context, const SumInOrder& p) {
  if (p.n == 0) return;
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = vector_elements<T>;
    with_whole(on_sixteen_bytes(p.out, p.parts) && whole_vectors(N, {p.n}), [&](auto whole) {
      launch(stream_of(context), Tile<N, 1>::blocks(p.n), block_threads, 0, sum_in_order_kernel<T, decltype(whole)>, p);
    });
  });
}

void column_sums(const Context& context, const ColumnSums& p) {
  if (p.M == 0 || p.N == 0) return;
  TESSERA_CUDA_REQUIRE(context.workspace.size() >= cuda::column_sums_workspace_bytes(p));
  auto* partial = reinterpret_cast<float*>(context.workspace.data());  // (blocks,N)
  const RowBlocks blocks = column_sum_blocks(p.M);
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int V = vector_elements<T>;
    const dim3 grid(static_cast<unsigned>(ceil_div(p.N, warp_lanes * V)), static_cast<unsigned>(blocks.count));
    with_whole(on_sixteen_bytes(p.x) && whole_vectors(V, {p.N}), [&](auto whole) {
      launch(stream_of(context), grid, dim3(warp_lanes, row_shares), 0, column_sums_kernel<T, decltype(whole)>, partial,
             static_cast<const T*>(p.x), blocks, p.N);
    });
  });
  add_partial_sums(stream_of(context), p.sum, partial, blocks.count, p.N);
}

void cast(const Context& context, void* out, DType out_dtype, const void* x, DType x_dtype, std::int64_t n) {
  if (n == 0) return;
  with_float_type(out_dtype, [&](auto out_type) {
    with_float_type(x_dtype, [&](auto in_type) {
      using Out = decltype(out_type);
      using In = decltype(in_type);
      constexpr int N = std::min(vector_elements<Out>, vector_elements<In>);
      with_whole(on_sixteen_bytes(out, x) && whole_vectors(N, {n}), [&](auto whole) {
        launch(stream_of(context), Tile<N, 4>::blocks(n), block_threads, 0, cast_kernel<Out, In, decltype(whole)>, static_cast<Out*>(out),
               static_cast<const In*>(x), n);
      });
    });
  });
}

void fill_zero(const Context& context, void* out, std::size_t bytes) {
  if (bytes > 0) TESSERA_CUDA_CHECK(cudaMemsetAsync(out, 0, bytes, stream_of(context)));
}

}  // namespace tessera::kernels::cuda
