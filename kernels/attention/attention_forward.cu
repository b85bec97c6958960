// Forward pass in bf16 and fp16 by the schedule of FlashAttention-2 (arXiv:2307.08691): a block owns 128 queries of a head (64 where the
// head dim exceeds 128) and walks the key tiles from its first query's first key up to its diagonal, or all of a block; scores and
// probabilities stay in registers. While a tile is computed, the next one is copied into the other half of a double buffer: one barrier a
// tile.
//
// Bound by tensor-core flops, 4 D a pair of query and visible key. A warp owns 32 rows so that each 512 bytes of K or V read from shared
// memory feed four products; with 16 rows, shared memory would be the limit. Not yet measured.
#include "kernels/attention/tensor_core_tiles.hpp"
#include "kernels/cuda/vector.hpp"

namespace tessera::kernels::cuda {
namespace {
using namespace tensor_core_tiles;

template <class Dims>
struct ForwardTiles {
  static constexpr int Dp = Dims::Dp;
  static constexpr int M = Dp <= 128 ? 2 : 1, queries = warps * 16 * M, keys = Dp >= 96 ? 32 : 64;  // what registers and 99 KiB hold
  static constexpr std::size_t shared_bytes = half_bytes * (Dp * queries + 2 * keys * (Dp + Dims::Dvp));
};

template <class T, class Dims, bool wide, class Seen>
__global__ void __launch_bounds__(threads) forward(ForwardPass a, ScoreScale scale) {
  using Tiles = ForwardTiles<Dims>;
  constexpr int Dp = Dims::Dp, Dvp = Dims::Dvp, stage_size = Tiles::keys * (Dp + Dvp), M = Tiles::M, queries = Tiles::queries,
                keys = Tiles::keys;
  T* q = dynamic_shared<T>();
  T* stages = q + queries * Dp;  // two of K (keys, Dp), V (keys, Dvp)
  const int end = static_cast<int>(a.queries), D = static_cast<int>(a.shape.D), Dv = Dims::Dv(a.shape);
  const int head = static_cast<int>(blockIdx.x), batch = static_cast<int>(blockIdx.z);
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * queries;  // long rows first, so that the blocks end together
  const Seen sight(a, batch);
  const int row = first + warp_index() * 16 * M, key_tiles = (sight.of_query(first + queries - 1) + keys - 1) / keys;
  const int first_tile = min(sight.begin_of_query(first) / keys, key_tiles - 1);  // queries that see no key have a tile too
  const Heads<const T> heads = inputs_of<T, Dims::same>(a, batch, head);
  auto load_keys = [&](int j) {
    T* stage = stages + j % 2 * stage_size;
    load_rows<Dp, keys, wide>(stage, heads.k + j * keys * heads.k_stride, heads.k_stride, sight.keys - j * keys, D);
    load_rows<Dvp, keys, wide>(stage + keys * Dp, heads.v + j * keys * heads.v_stride, heads.v_stride, sight.keys - j * keys, Dv);
    copy_async_commit();
  };
  load_rows<Dp, queries, wide>(q, heads.q + first * heads.q_stride, heads.q_stride, end - first, D);
  load_keys(first_tile);
  float out[M][Dvp / 8][4], most[M][2], total[M][2];
  set_zero(out);
#pragma unroll
  for (int i = 0; i < 2 * M; ++i) {
    most[i / 2][i % 2] = -INFINITY;
    total[i / 2][i % 2] = 0;
  }
#pragma unroll 1
  for (int j = first_tile; j < key_tiles; ++j) {
    copy_async_wait<0>();
    __syncthreads();  // tile j is there for all, and nobody reads the other stage any more
    if (j + 1 < key_tiles) load_keys(j + 1);
    if (j * keys >= sight.of_query(row + 16 * M - 1)) continue;                   // all after this warp's queries
    if (Seen::bounded && j * keys + keys <= sight.begin_of_query(row)) continue;  // all before their first keys
    const T* stage = stages + j % 2 * stage_size;
    float scores[M][keys / 8][4];
    multiply_rows<Dp>(scores, q, row - first, stage);
    if constexpr (Seen::capped) bend(scores, scale.bend);
    if (j * keys + keys > sight.of_query(row) || j * keys < sight.begin_of_query(row + 16 * M - 1))
      mask_unseen_keys(scores, row, j * keys, sight);
    float rescale[M][2];
    online_softmax(scores, most, total, rescale, scale.of_softmax<Seen>() * log2_e);
    scale_rows(out, rescale);
    add_product<Dvp>(out, scores, stage + keys * Dp);
  }
  float inverse[M][2];
  finish_softmax(inverse, a.lse + (batch * a.shape.H + head) * a.shape.T, most, total, row, end, scale.of_softmax<Seen>(), sight);
  T* to = static_cast<T*>(a.out) + batch * a.shape.T * a.shape.H * Dv + head * Dv;
  store_rows<Dvp>(to, a.shape.H * Dv, out, inverse, row, end, Dv);
}

}  // namespace

void attention_forward_half(const Context& context, const ForwardPass& a) {
  const AttentionShape& s = a.shape;
  with_sight(a, [&](auto seen) {
    using Seen = typename decltype(seen)::type;
    with_head_dims<Seen>(s, a.is_uniform(), [&](auto dims) {
      using Dims = decltype(dims);
      using Tiles = ForwardTiles<Dims>;
      const dim3 grid(static_cast<unsigned>(s.H), static_cast<unsigned>(ceil_div(a.queries, Tiles::queries)), static_cast<unsigned>(s.B));
      with_wide(copies_16_bytes(a), [&](auto wide) {
        with_half_type(s.dtype, [&](auto type) {
          launch(stream_of(context), grid, threads, Tiles::shared_bytes, forward<decltype(type), Dims, wide, Seen>, a, ScoreScale(s));
        });
      });
    });
  });
}

}  // namespace tessera::kernels::cuda
