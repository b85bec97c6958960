// Bound by memory: each operand is read or written once, sixteen bytes a thread and access, which are on their way while a row's share is
// computed. The host's shares to the bit. Not yet measured.
#include "kernels/attention_sinks/attention_sinks_sizes.hpp"
#include "kernels/attention_sinks/formulas.hpp"
#include "kernels/cuda/reduce.hpp"
#include "kernels/cuda/row_blocks.hpp"
#include "kernels/cuda/rows.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;
using attention_sinks_sizes::SinkTiles;

/// Where a token, of B*T, has a head in lse (B, H, T).
template <class Call>
__device__ __forceinline__ std::int64_t sink_term(const Call& p, unsigned token, std::int64_t head) {
  const auto T = static_cast<unsigned>(p.T), batch = token / T;
  return (batch * p.H + head) * p.T + (token - batch * T);
}

/// A group of `lanes` threads of a warp has a head of a token.
template <class T, class Whole>
__global__ void __launch_bounds__(block_threads) join_sinks_kernel(AttentionSinksForward p, RowVectors vectors, unsigned lanes) {
  constexpr int N = vector_elements<T>;
  const auto [token, thread] = vectors.place();
  const bool has_head = token < vectors.rows;
  const std::int64_t head = thread / lanes, begin = (token * p.H + head) * p.D, first = static_cast<std::int64_t>(thread % lanes) * N;
  const std::int64_t term = sink_term(p, static_cast<unsigned>(token), head), D = has_head ? p.D : 0;
  T* out = static_cast<T*>(p.out) + begin;
  Vector<T, N> v = load<Whole, N>(out, first, D);
  sinks::Joined<float> joined{};
  if (has_head) joined = sinks::join(p.lse[term], to_float(static_cast<const T*>(p.sinks)[head]));
  __syncwarp();  // all threads of the head have read what its first one overwrites
  if (has_head && thread % lanes == 0) p.lse[term] = joined.lse;
  for (std::int64_t i = first; i < D; i += lanes * N) {
    float x[N];
    if (i > first) v = load<Whole, N>(out, i, D);
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = joined.keys == 0 ? 0 : to_float(v.value[k]) * joined.keys;
    store<Whole>(out, i, D, x);
  }
}

constexpr int tokens_ahead = 4;  ///< what a thread asks for before it uses any

/// partial (blocks, H) = the sums of the row blocks. A thread sums what its columns of a head give over every `tiles.tokens`-th token; the
/// head's threads are added first, then the groups in their order.
template <class T, class Whole>
__global__ void __launch_bounds__(block_threads) sink_gradients_kernel(AttentionSinksBackward p, float* partial, SinkTiles tiles) {
  constexpr int N = vector_elements<T>;
  __shared__ float of_group[block_threads];
  const int group = static_cast<int>(threadIdx.x) / tiles.lanes, lane = static_cast<int>(threadIdx.x) % tiles.lanes;
  const int in_block = group % tiles.heads, mine = group / tiles.heads;
  const std::int64_t head = static_cast<std::int64_t>(blockIdx.y) * tiles.heads + in_block, end = tiles.rows.end(blockIdx.x);
  float sum = 0;
  if (mine < tiles.tokens && head < p.H) {
    const float sink = to_float(static_cast<const T*>(p.sinks)[head]);
    for (std::int64_t token = tiles.rows.begin(blockIdx.x) + mine; token < end; token += tokens_ahead * tiles.tokens) {
      float share[tokens_ahead], dot[tokens_ahead] = {};
      const auto at = [&](int u) { return token + u * tiles.tokens; };
#pragma unroll
      for (int u = 0; u < tokens_ahead; ++u) share[u] = at(u) < end ? p.lse[sink_term(p, static_cast<unsigned>(at(u)), head)] : 0;
      for (std::int64_t i = static_cast<std::int64_t>(lane) * N; i < p.D; i += static_cast<std::int64_t>(tiles.lanes) * N) {
        Vector<T, N> d_out[tokens_ahead], out[tokens_ahead];
#pragma unroll
        for (int u = 0; u < tokens_ahead; ++u) {
          const std::int64_t begin = (at(u) * p.H + head) * p.D, D = at(u) < end ? p.D : 0;
          d_out[u] = load<Whole, N>(static_cast<const T*>(p.d_out) + begin, i, D);
          out[u] = load<Whole, N>(static_cast<const T*>(p.out) + begin, i, D);
        }
#pragma unroll
        for (int u = 0; u < tokens_ahead; ++u)
#pragma unroll
          for (int k = 0; k < N; ++k) dot[u] = fmaf(to_float(d_out[u].value[k]), to_float(out[u].value[k]), dot[u]);
      }
#pragma unroll
      for (int u = 0; u < tokens_ahead; ++u) sum = fmaf(sinks::of_sink(share[u], sink), dot[u], sum);
    }
  }
  sum = warp_sum(sum, tiles.lanes);
  if (lane == 0) of_group[group] = sum;
  __syncthreads();
  const auto thread = static_cast<int>(threadIdx.x);
  const std::int64_t written = static_cast<std::int64_t>(blockIdx.y) * tiles.heads + thread;
  if (thread >= tiles.heads || written >= p.H) return;
  float total = 0;
  for (int t = 0; t < tiles.tokens; ++t) total += of_group[t * tiles.heads + thread];
  partial[blockIdx.x * p.H + written] = -total;
}

template <class Call>
bool sinks_make_sense(const Call& p) {
  return p.B >= 0 && p.T >= 0 && p.H >= 0 && p.D >= 0 && p.B * p.T < std::int64_t{1} << 32;
}

}  // namespace

void attention_sinks_forward(const Context& context, const AttentionSinksForward& p) {
  TESSERA_CUDA_REQUIRE(sinks_make_sense(p));
  if (p.B * p.T * p.H == 0) return;
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    const int lanes = attention_sinks_sizes::lanes_of_head(p.D, p.dtype);
    const RowVectors vectors(p.B * p.T, p.H * lanes, 1);
    with_whole(on_sixteen_bytes(p.out) && whole_vectors(vector_elements<T>, {p.D}), [&](auto whole) {
      launch(stream_of(context), vectors.blocks(), block_threads, 0, join_sinks_kernel<T, decltype(whole)>, p, vectors,
             static_cast<unsigned>(lanes));
    });
  });
}

void attention_sinks_backward(const Context& context, const AttentionSinksBackward& p) {
  TESSERA_CUDA_REQUIRE(sinks_make_sense(p));
  if (p.B * p.T * p.H == 0) return;
  TESSERA_CUDA_REQUIRE(context.workspace.size() >= cuda::attention_sinks_backward_workspace_bytes(p));
  const SinkTiles tiles(p);
  TESSERA_CUDA_REQUIRE(tiles.across < 65536);
  auto* partial = reinterpret_cast<float*>(context.workspace.data());  // (blocks,H)
  with_float_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    with_whole(on_sixteen_bytes(p.d_out, p.out) && whole_vectors(vector_elements<T>, {p.D}), [&](auto whole) {
      const dim3 grid(static_cast<unsigned>(tiles.rows.count), static_cast<unsigned>(tiles.across));
      launch(stream_of(context), grid, block_threads, 0, sink_gradients_kernel<T, decltype(whole)>, p, partial, tiles);
    });
  });
  add_partial_sums(stream_of(context), p.d_sinks, partial, tiles.rows.count, p.H);
}

}  // namespace tessera::kernels::cuda
