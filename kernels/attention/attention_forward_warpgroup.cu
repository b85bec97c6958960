// Forward pass in bf16 and fp16 for Hopper. Two warpgroups own 64 queries each of a head and walk the same key tiles, but out of phase:
// they take turns at starting products, and while one takes a softmax the tensor cores have the other's. Within a warpgroup the softmax of
// tile j runs beside the product of tile j - 1 with V. Both are of FlashAttention-3 (Shah et al., arXiv:2407.08608), without its producer
// warps: each warpgroup copies half of every tile. Keys and values of one width and stride alone (AttentionInput::is_uniform).
//
// Q stays in registers, so that products read one operand from shared memory: 2 KiB for 65536 multiply-adds.
// Bound by tensor-core flops, 4 D a pair of query and visible key; D counts as 64 or 128, for the scores also as 96. Not yet measured.
#include "kernels/attention/warpgroup_tiles.hpp"
#include "kernels/cuda/vector.hpp"

namespace tessera::kernels::cuda {
namespace {
using namespace warpgroup_tiles;

constexpr int queries = rows;

// A head dim of 64 leaves room for two blocks on a multiprocessor, with 128 registers a thread: too few for scores of 128 keys.
template <int columns>
struct ForwardTiles {
  static constexpr int Dp = padded_columns(columns), blocks = columns == 64 ? 2 : 1, keys = columns == 64 ? 64 : 128;
  static constexpr std::size_t shared_bytes = half_bytes * Dp * (queries + stages * 2 * keys);
};
static_assert(1024 + ForwardTiles<128>::shared_bytes < 1 << 18);  // with what the driver takes: further() counts on it

// In turn j a warpgroup starts the scores of tile j and the product of tile j - 1 with V, so tiles of K and of V that are needed together
// are a tile apart. Barrier 1 + w opens warpgroup w's turn when the other has started its products. By then the other's products of its
// turn before are done, and half of what this turn reads is there by its copies. So no other barrier stands in the loop:
// - The first warpgroup, in turn j, may overwrite what the second read in turn j - 2: it copies for turn j + 1.
// - The second, in turn j, may overwrite what the first read in turn j - 1: it copies for turn j + 2.
template <class T, int columns, bool wide, class Seen>
__global__ void __launch_bounds__(block_threads, ForwardTiles<columns>::blocks) forward(ForwardPass a, ScoreScale scale) {
  constexpr int Dp = padded_columns(columns), keys = ForwardTiles<columns>::keys, half = keys / 2;
  T* shared_q = dynamic_shared<T>();
  T* ring_of_k = shared_q + queries * Dp;  // stages of (keys, Dp)
  T* ring_of_v = ring_of_k + stages * keys * Dp;
  const int end = static_cast<int>(a.queries), D = static_cast<int>(a.shape.D);
  const int head = static_cast<int>(blockIdx.x), batch = static_cast<int>(blockIdx.z), lane = lane_index();
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * queries;  // long rows first
  const int warpgroup = warp_index() / 4;
  const Seen sight(a, batch);
  const int row = first + warp_index() * 16, begins = sight.begin_of_query(row + 15);  // the last of the warp's first keys
  const int key_tiles = (sight.of_query(first + queries - 1) + keys - 1) / keys;
  const int first_tile = min(sight.begin_of_query(first) / keys, key_tiles - 1);  // there is a tile, if only one that nobody sees
  const Heads<const T> heads = inputs_of<T, true>(a, batch, head);
  auto stage_of_k = [&](int j) { return ring_of_k + j % stages * keys * Dp; };
  auto stage_of_v = [&](int j) { return ring_of_v + j % stages * keys * Dp; };
  // The warpgroup's half of what turn j reads. Turns are asked for one after the other.
  const int mine = warpgroup * half;
  const T* next = Copies<Dp, warpgroup_lanes>().source(heads.k + (first_tile * keys + mine) * heads.k_stride, heads.k_stride);
  const std::int64_t to_values = heads.v - heads.k - keys * heads.k_stride;
  auto load_half = [&](T* stage, const T* source, int j) {
    load_panels_from<Dp, keys, wide, half, warpgroup_lanes>(stage + mine * panel_columns, source, heads.k_stride,
                                                            sight.keys - j * keys - mine, D);
  };
  auto load_turn = [&](int j) {
    if (j < key_tiles) load_half(stage_of_k(j), next, j);
    if (j > first_tile && j <= key_tiles) load_half(stage_of_v(j - 1), next + to_values, j - 1);
    next += keys * heads.k_stride;
  };
  auto begin_turn = [&] {
    copy_async_wait<0>();  // for this turn, or of the second warpgroup for the next
    shared_to_products();
    warpgroup == 0 ? barrier_wait<1, block_threads>() : barrier_wait<2, block_threads>();
  };
  auto end_turn = [&] { warpgroup == 0 ? barrier_arrive<2, block_threads>() : barrier_arrive<1, block_threads>(); };

  load_panels<Dp, queries, wide>(shared_q, heads.q + first * heads.q_stride, heads.q_stride, end - first, D);
  load_turn(first_tile);
  copy_async_commit();
  if (warpgroup == 1) load_turn(first_tile + 1);
  copy_async_commit();
  copy_async_wait<1>();
  shared_to_products();
  __syncthreads();
  std::uint32_t q[columns / 16][4];
#pragma unroll
  for (int i = 0; i < columns / 16; ++i)
    load_matrices(q[i], shared_q + panel_chunk_at<queries>(row - first + lane % 16, 2 * i + lane / 16));
  fence_registers(q);
  float scores[1][keys / 8][4], out[Dp / 64][8][4], most[1][2] = {{-INFINITY, -INFINITY}}, total[1][2] = {{0, 0}}, rescale[1][2];
  std::uint32_t p[keys / 16][4];
  set_zero(scores);
  set_zero(out);
  auto softmax = [&](int j) {
    fence_registers(scores[0]);
    if constexpr (Seen::capped) bend(scores, scale.bend);
    if (j * keys + keys > sight.of_query(row) || (Seen::bounded && j * keys < begins)) mask_unseen_keys(scores, row, j * keys, sight);
    online_softmax(scores, most, total, rescale, scale.of_softmax<Seen>() * log2_e);
  };
  // The wait for the outputs stands before the next tile and not behind the softmax: within one pass of the loop the compiler moves it up,
  // and the softmax would wait for the products that it is to run beside.
  auto finish_tile = [&] {
    warpgroup_wait<0>();  // the outputs of the tile before; none yet for the first, where out is 0
#pragma unroll
    for (int n = 0; n < Dp / 64; ++n) fence_registers(out[n]);
    pack_left<T>(p, scores[0]);
#pragma unroll
    for (int n = 0; n < Dp / 64; ++n)
#pragma unroll
      for (int i = 0; i < 32; ++i) out[n][i / 4][i % 4] *= rescale[0][i % 4 / 2];
  };
  if (warpgroup == 1) end_turn();  // the first warpgroup begins
  begin_turn();
  start_scores(scores[0], q, stage_of_k(first_tile));
  end_turn();
  load_turn(first_tile + 1 + warpgroup);
  copy_async_commit();
  warpgroup_wait<0>();
  softmax(first_tile);
#pragma unroll 1
  for (int j = first_tile + 1; j < key_tiles; ++j) {  // scores hold the probabilities of tile j - 1
    finish_tile();
    begin_turn();
    start_scores(scores[0], q, stage_of_k(j));
    start_outputs<Dp>(out, p, stage_of_v(j - 1));
    end_turn();
    load_turn(j + 1 + warpgroup);  // beside the products
    copy_async_commit();
    warpgroup_wait<1>();  // the scores
    softmax(j);
  }
  finish_tile();
  begin_turn();
  start_outputs<Dp>(out, p, stage_of_v(key_tiles - 1));
  if (warpgroup == 0) end_turn();
  warpgroup_wait<0>();
#pragma unroll
  for (int n = 0; n < Dp / 64; ++n) fence_registers(out[n]);
  float inverse[1][2];
  finish_softmax(inverse, a.lse + (batch * a.shape.H + head) * a.shape.T, most, total, row, end, scale.of_softmax<Seen>(), sight);
  T* to = static_cast<T*>(a.out) + batch * a.shape.T * a.shape.H * D + head * D;
  store_panels<Dp>(to, a.shape.H * D, out, inverse, row, end, D);
}

}  // namespace

void attention_forward_warpgroup(const Context& context, const ForwardPass& a) {
  const AttentionShape& s = a.shape;
  const dim3 grid(static_cast<unsigned>(s.H), static_cast<unsigned>(ceil_div(a.queries, queries)), static_cast<unsigned>(s.B));
  with_sight(a, [&](auto seen) {
    using Seen = typename decltype(seen)::type;
    with_columns<Seen>(s.D, [&](auto columns) {
      with_wide(copies_16_bytes(a), [&](auto wide) {
        with_half_type(s.dtype, [&](auto type) {
          launch(stream_of(context), grid, block_threads, ForwardTiles<columns>::shared_bytes, forward<decltype(type), columns, wide, Seen>,
                 a, ScoreScale(s));
        });
      });
    });
  });
}

}  // namespace tessera::kernels::cuda
