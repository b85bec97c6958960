// Bound by memory: a block sums a row, and a thread norms a vector of one. In the backward pass a thread keeps its place of the rows of a
// row block, so that the weights' gradients are sums of its own. Not yet measured.
#include "kernels/wide_qk_norm/wide_qk_norm.hpp"

#include "kernels/cuda/reduce.hpp"
#include "kernels/cuda/row_blocks.hpp"
#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/vector.hpp"
#include "kernels/rmsnorm/formulas.hpp"
#include "kernels/wide_qk_norm/wide_qk_norm_sizes.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;
using namespace wide_qk_norm_sizes;

/// Query features of a row, or key features: where they begin, how many there are here, and how many are normed together.
struct WideSpan {
  std::int64_t begin, count, all;
  int number;
  __device__ WideSpan(const WideQkShape& s, bool key)
      : begin(key ? s.Q : 0), count(key ? s.K : s.Q), all(s.parts * (key ? s.K : s.Q)), number(key ? 1 : 0) {}
};

__device__ float sum_of_parts(const float* sums, const WideQkShape& s, std::int64_t m, int number) {
  float total = 0;
  for (std::int64_t part = 0; part < s.parts; ++part) total += sums[(part * s.M + m) * 2 + number];
  return total;
}

/// A block a row: what `add` makes of each vector, over the query features and over the key features.
template <int N, class Add>
__device__ void sum_row(float* sums, const WideQkShape& s, Add&& add) {
  const std::int64_t m = blockIdx.x;
  for (int number = 0; number < 2; ++number) {
    const WideSpan span(s, number == 1);
    float sum = 0;
    for (std::int64_t i = static_cast<std::int64_t>(threadIdx.x) * N; i < span.count; i += static_cast<std::int64_t>(block_threads) * N)
      sum = add(span, m * s.stride + span.begin, i, sum);
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[2 * m + number] = sum;
  }
}

template <class T, class Whole>
__global__ void __launch_bounds__(block_threads) sums_kernel(WideQkSums p) {
  constexpr int N = vector_elements<T>;
  sum_row<N>(p.sums, p.shape, [&](const WideSpan& span, std::int64_t at, std::int64_t i, float sum) {
    const Vector<T, N> x = load<Whole, N>(static_cast<const T*>(p.x) + at, i, span.count);
#pragma unroll
    for (int e = 0; e < N; ++e) sum = fmaf(to_float(x.value[e]), to_float(x.value[e]), sum);
    return sum;
  });
}

template <class T, class Whole>
__global__ void __launch_bounds__(block_threads) dots_kernel(WideQkDots p) {
  constexpr int N = vector_elements<T>;
  sum_row<N>(p.dots, p.shape, [&](const WideSpan& span, std::int64_t at, std::int64_t i, float sum) {
    const Vector<T, N> d = load<Whole, N>(static_cast<const T*>(p.d) + at, i, span.count),
                       x = load<Whole, N>(static_cast<const T*>(p.x) + at, i, span.count),
                       weight = load<Whole, N>(static_cast<const T*>(span.number == 0 ? p.q_norm : p.k_norm), i, span.count);
#pragma unroll
    for (int e = 0; e < N; ++e)
      sum = norm::add_dot(to_float(d.value[e]), to_float(weight.value[e]) + p.shape.offset, to_float(x.value[e]), sum);
    return sum;
  });
}

/// Threads have the vectors of all rows in turn: query features, key features, and others where they have to be copied.
template <class T, class Whole>
__global__ void __launch_bounds__(block_threads) norm_kernel(WideQkNorm p, RowVectors vectors, WideVectors own) {
  constexpr int N = vector_elements<T>;
  const auto [m, vector] = vectors.place();
  if (m >= vectors.rows) return;
  const WideQkShape& s = p.shape;
  const T* x = static_cast<const T*>(p.x) + m * s.stride;
  T* out = static_cast<T*>(p.out) + m * s.stride;
  if (vector >= own.query + own.key) {
    const std::int64_t begin = s.Q + s.K, i = (vector - own.query - own.key) * N;
    store<Whole>(out + begin, i, s.stride - begin, load<Whole, N>(x + begin, i, s.stride - begin));
    return;
  }
  const WideSpan span(s, vector >= own.query);
  const std::int64_t i = (vector - (span.number == 0 ? 0 : own.query)) * N;
  const Vector<T, N> a = load<Whole, N>(x + span.begin, i, span.count),
                     weight = load<Whole, N>(static_cast<const T*>(span.number == 0 ? p.q_norm : p.k_norm), i, span.count);
  const float rstd = norm::reciprocal_rms(sum_of_parts(p.sums, s, m, span.number), span.all, s.eps);
  float value[N];
#pragma unroll
  for (int e = 0; e < N; ++e) value[e] = norm::scaled(to_float(a.value[e]), to_float(weight.value[e]) + s.offset, rstd);
  store<Whole>(out + span.begin, i, span.count, value);
}

template <class T, class Whole>
__global__ void __launch_bounds__(block_threads)
    backward_kernel(WideQkNormBackward p, float* partial, RowBlocks blocks, WideVectors own, unsigned columns) {
  constexpr int N = vector_elements<T>;
  const WideQkShape& s = p.shape;
  const std::int64_t block = blockIdx.x / columns;
  const std::int64_t vector = static_cast<std::int64_t>(blockIdx.x % columns) * block_threads + threadIdx.x;
  if (vector >= own.query + own.key) return;
  const WideSpan span(s, vector >= own.query);
  const std::int64_t i = (vector - (span.number == 0 ? 0 : own.query)) * N;
  const Vector<T, N> weight = load<Whole, N>(static_cast<const T*>(span.number == 0 ? p.q_norm : p.k_norm), i, span.count);
  float d_weight[N] = {};
  for (std::int64_t m = blocks.begin(block); m < blocks.end(block); ++m) {
    const std::int64_t at = m * s.stride + span.begin;
    T* d = static_cast<T*>(p.d) + at;
    const Vector<T, N> g = load<Whole, N>(static_cast<const T*>(d), i, span.count),
                       x = load<Whole, N>(static_cast<const T*>(p.x) + at, i, span.count);
    const float rstd = norm::reciprocal_rms(sum_of_parts(p.sums, s, m, span.number), span.all, s.eps);
    const float along_x = norm::along_x(sum_of_parts(p.dots, s, m, span.number), span.all, rstd);
    float value[N];
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const float of_out = to_float(g.value[e]), v = to_float(x.value[e]);
      d_weight[e] = norm::add_weight_gradient(of_out, v, rstd, d_weight[e]);
      value[e] = norm::gradient(of_out, to_float(weight.value[e]) + s.offset, rstd, v * along_x);
    }
    store<Whole>(d, i, span.count, value);
  }
  // All blocks' sums of query features, then all blocks' of key features.
  float* sums = span.number == 0 ? partial + block * s.Q : partial + blocks.count * s.Q + block * s.K;
#pragma unroll
  for (int e = 0; e < N; ++e)
    if (i + e < span.count) sums[i + e] = d_weight[e];
}

template <class T>
bool whole_rows(const WideQkShape& s) {
  return whole_vectors(vector_elements<T>, {s.Q, s.K, s.stride});
}

unsigned rows_of(const WideQkShape& s) {
  TESSERA_CUDA_REQUIRE(s.M < std::int64_t{1} << 31);
  return static_cast<unsigned>(s.M);
}

}  // namespace

void wide_qk_sums(const Context& context, const WideQkSums& p) {
  if (p.shape.M == 0) return;
  with_float_type(p.shape.dtype, [&](auto type) {
    using T = decltype(type);
    with_whole(on_sixteen_bytes(p.x) && whole_rows<T>(p.shape),
               [&](auto whole) { launch(stream_of(context), rows_of(p.shape), block_threads, 0, sums_kernel<T, decltype(whole)>, p); });
  });
}

void wide_qk_norm(const Context& context, const WideQkNorm& p) {
  if (p.shape.M == 0) return;
  with_float_type(p.shape.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr std::int64_t N = vector_elements<T>;
    const WideQkShape& s = p.shape;
    const WideVectors own(s, N);
    const std::int64_t others = p.out == p.x ? 0 : ceil_div(s.stride - s.Q - s.K, N);
    const RowVectors vectors(s.M, (own.query + own.key + others) * N, static_cast<int>(N));
    with_whole(on_sixteen_bytes(p.out, p.x, p.q_norm, p.k_norm) && whole_rows<T>(s), [&](auto whole) {
      launch(stream_of(context), vectors.blocks(), block_threads, 0, norm_kernel<T, decltype(whole)>, p, vectors, own);
    });
  });
}

void wide_qk_dots(const Context& context, const WideQkDots& p) {
  if (p.shape.M == 0) return;
  with_float_type(p.shape.dtype, [&](auto type) {
    using T = decltype(type);
    with_whole(on_sixteen_bytes(p.d, p.x, p.q_norm, p.k_norm) && whole_rows<T>(p.shape),
               [&](auto whole) { launch(stream_of(context), rows_of(p.shape), block_threads, 0, dots_kernel<T, decltype(whole)>, p); });
  });
}

void wide_qk_norm_backward(const Context& context, const WideQkNormBackward& p) {
  const WideQkShape& s = p.shape;
  if (s.M == 0) return;
  TESSERA_CUDA_REQUIRE(context.workspace.size() >= cuda::wide_qk_norm_backward_workspace_bytes(p));
  const RowBlocks blocks = row_blocks(s);
  const auto columns = static_cast<unsigned>(column_blocks(s));
  auto* partial = reinterpret_cast<float*>(context.workspace.data());
  with_float_type(s.dtype, [&](auto type) {
    using T = decltype(type);
    const WideVectors own(s, vector_elements<T>);
    with_whole(on_sixteen_bytes(p.d, p.x, p.q_norm, p.k_norm) && whole_rows<T>(s), [&](auto whole) {
      launch(stream_of(context), static_cast<unsigned>(blocks.count) * columns, block_threads, 0, backward_kernel<T, decltype(whole)>, p,
             partial, blocks, own, columns);
    });
  });
  add_partial_sums(stream_of(context), p.d_q_norm, partial, blocks.count, s.Q);
  add_partial_sums(stream_of(context), p.d_k_norm, partial + blocks.count * s.Q, blocks.count, s.K);
}

}  // namespace tessera::kernels::cuda
