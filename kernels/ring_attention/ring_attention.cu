// Bound by memory: each operand is read or written once, sixteen bytes a thread and access. The host's operations, and so its bits. Not yet
// measured.
#include "kernels/ring_attention/ring_attention.hpp"

#include "kernels/cuda/rows.hpp"
#include "kernels/ring_attention/merge.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

/// A group of `lanes` threads of a warp has a row of one head: rows are counted as (B, queries, H).
template <class T, class Whole>
__global__ void __launch_bounds__(block_threads) merge_block_kernel(MergeBlock p, RowVectors vectors, unsigned lanes) {
  constexpr int N = vector_elements<T>;
  const auto [counted, thread] = vectors.place();
  const bool has_row = counted < vectors.rows;
  const auto queries = static_cast<unsigned>(p.queries.count), query = static_cast<unsigned>(counted);
  const std::int64_t head = thread / lanes, batch = query / queries, row = p.queries.first + query % queries;
  const std::int64_t term = (batch * p.shape.H + head) * p.shape.T + row, D = p.shape.value_dim();
  ring_attention::Merged<float> merged{};
  if (has_row) merged = ring_attention::merge(p.lse[term], p.block_lse[term]);
  __syncwarp();  // all threads of the row have read what its first one overwrites
  if (!has_row) return;
  if (thread % lanes == 0) p.lse[term] = merged.lse;
  const std::int64_t at = ((batch * p.shape.T + row) * p.shape.H + head) * D;
  for (std::int64_t i = thread % lanes * N; i < D; i += lanes * N) {
    float sum[N], block[N];
    load<Whole>(sum, p.sum + at, i, D);
    load<Whole>(block, static_cast<const T*>(p.block_out) + at, i, D);
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] = fmaf(sum[k], merged.share_of_first, block[k] * merged.share_of_second);
    store<Whole>(p.sum + at, i, D, sum);
  }
}

/// A vector a thread, of all rows where the sums begin, else of those that the block has.
template <class T, class Whole>
__global__ void __launch_bounds__(block_threads) add_block_gradient_kernel(AddBlockGradient p, RowVectors vectors) {
  constexpr int N = vector_elements<T>;
  const auto [counted, vector] = vectors.place();
  if (counted >= vectors.rows) return;
  const auto in_sequence = static_cast<unsigned>(p.first ? p.T : p.rows.count), row = static_cast<unsigned>(counted);
  const std::int64_t t = row % in_sequence + (p.first ? 0 : p.rows.first), i = static_cast<std::int64_t>(vector) * N;
  const std::int64_t at = (row / in_sequence * p.T + t) * p.W;
  float sum[N] = {}, block[N];
  if (!p.first) load<Whole>(sum, p.sum + at, i, p.W);
  if (t >= p.rows.first && t < p.rows.first + p.rows.count) {
    load<Whole>(block, static_cast<const T*>(p.block) + at, i, p.W);
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] = p.first ? block[k] : sum[k] + block[k];
  }
  store<Whole>(p.sum + at, i, p.W, sum);
}

/// Heads of one kind in d_qkv, and their fp32 sums.
template <class T>
struct GradientRows {
  T* heads;
  float* sums;
  std::int64_t stride, sums_stride, width;
};
template <class T>
struct GradientKinds {
  GradientRows<T> kinds[3];  ///< queries, keys, values
};

/// A vector a thread: those of a token's queries, then of its keys, then of its values. `joins`: from the sums to d_qkv, else the other
/// way.
template <class T, class Whole, bool joins>
__global__ void __launch_bounds__(block_threads) gradients_kernel(GradientKinds<T> of, RowVectors vectors) {
  constexpr int N = vector_elements<T>;
  const auto [row, counted] = vectors.place();
  if (row >= vectors.rows) return;
  std::int64_t vector = counted;
  int kind = 0;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const std::int64_t before = (of.kinds[k].width + N - 1) / N;
    if (kind == k && vector >= before) vector -= before, ++kind;
  }
  const GradientRows<T>& rows = kind == 0 ? of.kinds[0] : kind == 1 ? of.kinds[1] : of.kinds[2];
  T* heads = rows.heads + row * rows.stride;
  float *sums = rows.sums + row * rows.sums_stride, x[N];
  const std::int64_t n = rows.width, i = vector * N;
  if constexpr (joins) {
    load<Whole>(x, sums, i, n);
    store<Whole>(heads, i, n, x);
  } else {
    load<Whole>(x, heads, i, n);
    store<Whole>(sums, i, n, x);
  }
}

/// What a side only reads is not written for it.
template <bool joins, class P>
void gradients(const Context& context, const QueryKeyValue<P>& d_qkv, const float* d_q, const float* d_kv, const AttentionShape& s) {
  const std::int64_t queries = s.H * s.D, keys = s.G * s.D, values = s.G * s.value_dim();
  if (s.B * s.T == 0) return;
  with_float_type(s.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr std::int64_t N = vector_elements<T>;
    const auto rows_of = [](const HeadRows<P>& rows, const float* sums, std::int64_t sums_stride, std::int64_t width) {
      auto* heads = static_cast<T*>(const_cast<void*>(static_cast<const void*>(rows.data)));
      return GradientRows<T>{heads, const_cast<float*>(sums), rows.stride, sums_stride, width};
    };
    const GradientKinds<T> of{{rows_of(d_qkv.q, d_q, queries, queries), rows_of(d_qkv.k, d_kv, keys + values, keys),
                               rows_of(d_qkv.v, d_kv + keys, keys + values, values)}};
    const RowVectors vectors(s.B * s.T, (ceil_div(queries, N) + ceil_div(keys, N) + ceil_div(values, N)) * N, static_cast<int>(N));
    bool whole_rows = true;
    for (const GradientRows<T>& rows : of.kinds)
      whole_rows = whole_rows && on_sixteen_bytes(rows.heads, rows.sums) &&
                   whole_vectors(static_cast<int>(N), {rows.width, rows.stride, rows.sums_stride});
    with_whole(whole_rows, [&](auto whole) {
      launch(stream_of(context), vectors.blocks(), block_threads, 0, gradients_kernel<T, decltype(whole), joins>, of, vectors);
    });
  });
}

}  // namespace

void merge_block(const Context& context, const MergeBlock& p) {
  const AttentionShape& s = p.shape;
  TESSERA_CUDA_REQUIRE(ring_attention::makes_sense(p.queries, s.T) && s.B * s.T < std::int64_t{1} << 32);
  if (s.B * p.queries.count * s.H == 0) return;
  with_float_type(s.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = vector_elements<T>;
    unsigned lanes = 1;
    while (lanes < warp_lanes && lanes * N < s.value_dim()) lanes *= 2;
    const RowVectors vectors(s.B * p.queries.count, s.H * lanes, 1);
    with_whole(on_sixteen_bytes(p.sum, p.block_out) && whole_vectors(N, {s.value_dim()}), [&](auto whole) {
      launch(stream_of(context), vectors.blocks(), block_threads, 0, merge_block_kernel<T, decltype(whole)>, p, vectors, lanes);
    });
  });
}

void add_block_gradient(const Context& context, const AddBlockGradient& p) {
  TESSERA_CUDA_REQUIRE(ring_attention::makes_sense(p.rows, p.T) && p.B * p.T < std::int64_t{1} << 32);
  const std::int64_t rows = p.B * (p.first ? p.T : p.rows.count);
  if (rows * p.W == 0) return;
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = vector_elements<T>;
    const RowVectors vectors(rows, p.W, N);
    with_whole(on_sixteen_bytes(p.sum, p.block) && whole_vectors(N, {p.W}), [&](auto whole) {
      launch(stream_of(context), vectors.blocks(), block_threads, 0, add_block_gradient_kernel<T, decltype(whole)>, p, vectors);
    });
  });
}

void begin_gradients(const Context& context, const BeginGradients& p) { gradients<false>(context, p.d_qkv, p.d_q, p.d_kv, p.shape); }

void end_gradients(const Context& context, const EndGradients& p) { gradients<true>(context, p.d_qkv, p.d_q, p.d_kv, p.shape); }

}  // namespace tessera::kernels::cuda
