// Forward pass in bf16 by the schedule of FlashAttention-2 (arXiv:2307.08691): a block owns 128 queries of a head (64 where the head dim
// exceeds 128) and walks the key tiles up to its diagonal; scores and probabilities stay in registers. While a tile is computed, the next
// one is copied into the other half of a double buffer: one barrier a tile.
//
// Bound by tensor-core flops, 4 D a pair of query and visible key. A warp owns 32 rows so that each 512 bytes of K or V read from shared
// memory feed four products; with 16 rows, shared memory would be the limit. Not yet measured.
#include "kernels/attention/tensor_core_tiles.hpp"

namespace tessera::kernels::cuda {
namespace {
using namespace tensor_core_tiles;

template <int Dp>
struct ForwardTiles {
  static constexpr int M = Dp <= 128 ? 2 : 1, queries = warps * 16 * M, keys = Dp == 96 || Dp == 128 ? 32 : 64;  // what registers hold
  static constexpr std::size_t shared_bytes = sizeof(bf16) * Dp * (queries + 4 * keys);
};

// Scores of keys after the query become -infinity. `row` and `key` are the first of the warp's tile.
template <int M, int N>
__device__ __forceinline__ void mask_later_keys(float (&scores)[M][N][4], int row, int key) {
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (key + 8 * n + lane % 4 * 2 + i % 2 > row + 16 * m + lane / 4 + i / 2 * 8) scores[m][n][i] = -INFINITY;
}

// Scores become probabilities relative to the running maximum `most` (of raw scores); `total` (this lane's columns alone) and `out` follow
// it. Four lanes share a row.
template <int M, int N, int O>
__device__ __forceinline__ void online_softmax(float (&scores)[M][N][4], float (&out)[M][O][4], float (&most)[M][2], float (&total)[M][2],
                                               float scale_base2) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float row_most = most[m][half];
#pragma unroll
      for (int n = 0; n < N; ++n) row_most = fmaxf(row_most, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
      row_most = fmaxf(row_most, __shfl_xor_sync(all_lanes, row_most, 1));
      row_most = fmaxf(row_most, __shfl_xor_sync(all_lanes, row_most, 2));
      const float rescale = exp2_approximate((most[m][half] - row_most) * scale_base2), shift = row_most * scale_base2;
      most[m][half] = row_most;
      total[m][half] *= rescale;
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[m][n][i] = exp2_approximate(fmaf(scores[m][n][i], scale_base2, -shift));
          total[m][half] += scores[m][n][i];
        }
#pragma unroll
      for (int n = 0; n < O; ++n) {
        out[m][n][2 * half] *= rescale;
        out[m][n][2 * half + 1] *= rescale;
      }
    }
}

template <int Dp>
__global__ void __launch_bounds__(threads) forward(AttentionForward a, float scale, bool wide) {
  using Tiles = ForwardTiles<Dp>;
  constexpr int M = Tiles::M, queries = Tiles::queries, keys = Tiles::keys;
  bf16* q = dynamic_shared<bf16>();
  bf16* stages = q + queries * Dp;  // two of K (keys, Dp), V (keys, Dp)
  const int T = static_cast<int>(a.shape.T), D = static_cast<int>(a.shape.D);
  const int head = static_cast<int>(blockIdx.x), batch = static_cast<int>(blockIdx.z);
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * queries;  // long rows first, so that the blocks end together
  const int row = first + warp_index() * 16 * M, key_tiles = (min(first + queries, T) + keys - 1) / keys;
  const Heads<const bf16> heads(static_cast<const bf16*>(a.qkv), a.shape, batch, head);
  auto load_keys = [&](int j) {
    bf16* stage = stages + j % 2 * 2 * keys * Dp;
    load_rows<Dp, keys>(stage, heads.k + j * keys * heads.stride, heads.stride, T - j * keys, D, wide);
    load_rows<Dp, keys>(stage + keys * Dp, heads.v + j * keys * heads.stride, heads.stride, T - j * keys, D, wide);
    copy_async_commit();
  };
  load_rows<Dp, queries>(q, heads.q + first * heads.stride, heads.stride, T - first, D, wide);
  load_keys(0);
  float out[M][Dp / 8][4], most[M][2], total[M][2];
  set_zero(out);
#pragma unroll
  for (int i = 0; i < 2 * M; ++i) {
    most[i / 2][i % 2] = -INFINITY;
    total[i / 2][i % 2] = 0;
  }
#pragma unroll 1
  for (int j = 0; j < key_tiles; ++j) {
    copy_async_wait<0>();
    __syncthreads();  // tile j is there for all, and nobody reads the other stage any more
    if (j + 1 < key_tiles) load_keys(j + 1);
    if (j * keys > row + 16 * M - 1) continue;  // all after this warp's queries
    const bf16* stage = stages + j % 2 * 2 * keys * Dp;
    float scores[M][keys / 8][4];
    multiply_rows<Dp>(scores, q, row - first, stage);
    if (j * keys + keys - 1 > row) mask_later_keys(scores, row, j * keys);
    online_softmax(scores, out, most, total, scale * log2_e);
    add_product<Dp>(out, scores, stage + keys * Dp);
  }
  float* lse = a.lse + (batch * a.shape.H + head) * T;
  float inverse[M][2];
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = total[m][half];
      sum += __shfl_xor_sync(all_lanes, sum, 1);
      sum += __shfl_xor_sync(all_lanes, sum, 2);
      inverse[m][half] = 1 / sum;
      const int query = row + 16 * m + 8 * half + lane_index() / 4;
      if (query < T && lane_index() % 4 == 0) lse[query] = most[m][half] * scale + logf(sum);
    }
  bf16* to = static_cast<bf16*>(a.out) + batch * a.shape.T * a.shape.H * D + head * D;
  store_rows<Dp>(to, a.shape.H * D, out, inverse, row, T, D);
}

}  // namespace

void attention_forward_bf16(const Context& context, const AttentionForward& a) {
  const AttentionShape& s = a.shape;
  with_head_dim(s.D, [&](auto head_dim) {
    using Tiles = ForwardTiles<decltype(head_dim)::value>;
    const dim3 grid(static_cast<unsigned>(s.H), static_cast<unsigned>(ceil_div(s.T, Tiles::queries)), static_cast<unsigned>(s.B));
    launch(stream_of(context), grid, threads, Tiles::shared_bytes, forward<decltype(head_dim)::value>, a,
           1 / sqrtf(static_cast<float>(s.D)), copies_16_bytes(a.qkv, s.D));
  });
}

}  // namespace tessera::kernels::cuda
