// Forward copies rows: bound by memory, two elements a value. Backward sorts token positions by id (sort.cu), then each row that occurs is
// summed in token order by the threads that own its columns: no atomics, and the host's bits. Bound by memory too (each row of d_out once,
// each row of d_table that occurs twice), save that a token that is a large part of the batch is one long chain. Not yet measured.
#include "kernels/cuda/rows.hpp"
#include "kernels/embedding/sort.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

template <bool scaled, class T, class Whole>
__global__ void __launch_bounds__(block_threads) forward_kernel(EmbeddingForward p, RowVectors vectors) {
  constexpr int N = vector_elements<T>;
  const auto [m, vector] = vectors.place();
  if (m >= vectors.rows) return;
  const std::int64_t i = static_cast<std::int64_t>(vector) * N, row = p.tokens[m] - p.slice.first;
  const bool here = p.slice.whole || (row >= 0 && row < p.V);
  require(row >= 0 || !p.slice.whole);
  Vector<T, N> x = load<Whole, N>(static_cast<const T*>(p.table) + (here ? row : 0) * p.C, i, here ? p.C : 0);
  if (scaled && here) {
    float value[N];
#pragma unroll
    for (int k = 0; k < N; ++k) value[k] = to_float(x.value[k]) * p.scale;
    x = Converter<T, N>::of(value);
  }
  store<Whole>(static_cast<T*>(p.out) + m * p.C, i, p.C, x);
}

constexpr int row_threads = 128, columns_of_thread = 4, places_of_block = 8;

/// sum += scale times the rows of d_out at `depth` sorted places from k on, as far as they are below `end`. By 1 a multiply-add has an
/// addition's bits, and costs as much.
template <int depth, class Whole, class T>
__device__ void add_rows(float (&sum)[columns_of_thread], const T* d_out, const std::int32_t* order, std::int64_t k, std::int64_t end,
                         std::int64_t column, std::int64_t C, float scale) {
  constexpr int N = columns_of_thread;
  Vector<T, N> row[depth];
#pragma unroll
  for (int u = 0; u < depth; ++u) row[u] = load<Whole, N>(d_out + (k + u < end ? order[k + u] : 0) * C, column, k + u < end ? C : 0);
#pragma unroll
  for (int u = 0; u < depth; ++u) {
    if (k + u >= end) break;
#pragma unroll
    for (int e = 0; e < N; ++e) sum[e] = fmaf(scale, to_float(row[u].value[e]), sum[e]);
  }
}

/// A block has eight places of the sorted tokens and 512 columns. It sums the tokens whose first place is among them.
template <class T, class Whole>
__global__ void __launch_bounds__(row_threads) backward_kernel(EmbeddingBackward p, SortedTokens sorted) {
  constexpr int N = columns_of_thread, deep = 16, shallow = 8;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * row_threads + threadIdx.x) * N;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * places_of_block;
  const T* d_out = static_cast<const T*>(p.d_out);
  for (std::int64_t k = first; k < first + places_of_block && k < p.M; ++k) {
    const std::int32_t token = sorted.tokens[k];
    if (token == p.V) break;  // from here on tokens of other slices
    if (k > 0 && sorted.tokens[k - 1] == token) continue;
    float* d_row = p.d_table + token * p.C;
    float sum[N];
    load<Whole>(sum, d_row, column, p.C);
    std::int64_t at = k;
    for (; at + deep <= p.M && sorted.tokens[at + deep - 1] == token; at += deep)
      add_rows<deep, Whole>(sum, d_out, sorted.order, at, at + deep, column, p.C, p.scale);
    while (at < p.M && sorted.tokens[at] == token) {
      std::int64_t end = at + 1;
      while (end < at + shallow && end < p.M && sorted.tokens[end] == token) ++end;
      add_rows<shallow, Whole>(sum, d_out, sorted.order, at, end, column, p.C, p.scale);
      at = end;
    }
    store<Whole>(d_row, column, p.C, sum);
  }
}

}  // namespace

void embedding_forward(const Context& context, const EmbeddingForward& p) {
  if (p.M == 0 || p.C == 0) return;
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = vector_elements<T>;
    const RowVectors vectors(p.M, p.C, N);
    with_whole(on_sixteen_bytes(p.out, p.table) && whole_vectors(N, {p.C}), [&](auto whole) {
      auto* kernel = p.scale == 1 ? forward_kernel<false, T, decltype(whole)> : forward_kernel<true, T, decltype(whole)>;
      launch(stream_of(context), vectors.blocks(), block_threads, 0, kernel, p, vectors);
    });
  });
}

void embedding_backward(const Context& context, const EmbeddingBackward& p) {
  if (p.M == 0 || p.C == 0) return;
  TESSERA_CUDA_REQUIRE(context.workspace.size() >= cuda::embedding_backward_workspace_bytes(p));
  const SortedTokens sorted = sort_tokens(stream_of(context), context.workspace.data(), {p.tokens, p.M, p.V, p.slice});
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    const dim3 grid(static_cast<unsigned>(ceil_div(p.M, places_of_block)),
                    static_cast<unsigned>(ceil_div(p.C, row_threads * columns_of_thread)));
    with_whole(on_sixteen_bytes(p.d_table, p.d_out) && whole_vectors(columns_of_thread, {p.C}),
               [&](auto whole) { launch(stream_of(context), grid, row_threads, 0, backward_kernel<T, decltype(whole)>, p, sorted); });
  });
}

}  // namespace tessera::kernels::cuda
