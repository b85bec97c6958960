// Forward pass in bf16 for Hopper. Two warpgroups own 64 queries each of a head and walk key tiles together. While a warpgroup takes the
// softmax of tile j + 1, the tensor cores multiply tile j with V, and tile j + 2 is on its way from global memory: the order within a
// warpgroup of FlashAttention-3 (Shah et al., arXiv:2407.08608), without its producer warps.
//
// Q stays in registers, so that products read one operand from shared memory: 2 KiB for 65536 multiply-adds.
// Bound by tensor-core flops, 4 D a pair of query and visible key; D counts as 64 or 128, for the scores also as 96. Not yet measured.
#include "kernels/attention/warpgroup_tiles.hpp"

namespace tessera::kernels::cuda {
namespace {
using namespace warpgroup_tiles;

constexpr int queries = rows, keys = step;

template <int columns>
constexpr std::size_t shared_bytes = sizeof(bf16) * padded_columns(columns) * (queries + stages * 2 * keys);
static_assert(1024 + shared_bytes<128> < 1 << 18);  // with what the driver takes: further() counts on it

// A head dim of 64 leaves room for two blocks on a multiprocessor.
template <int columns, bool wide, class Seen>
__global__ void __launch_bounds__(block_threads, columns == 64 ? 2 : 1) forward(ForwardPass a, float scale) {
  constexpr int Dp = padded_columns(columns);
  bf16* shared_q = dynamic_shared<bf16>();
  bf16* ring = shared_q + queries * Dp;  // stages of K (keys, Dp), V (keys, Dp)
  const int end = static_cast<int>(a.queries), D = static_cast<int>(a.shape.D);
  const int head = static_cast<int>(blockIdx.x), batch = static_cast<int>(blockIdx.z), lane = lane_index();
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * queries;  // long rows first
  const Seen sight(a, batch);
  const int row = first + warp_index() * 16, begins = sight.begin_of_query(row + 15);  // the last of the warp's documents
  const int first_tile = sight.begin_of_query(first) / keys, key_tiles = (sight.of_query(first + queries - 1) + keys - 1) / keys;
  const Heads<const bf16> heads = inputs_of<bf16>(a, batch, head);
  auto stage = [&](int j) { return ring + j % stages * 2 * keys * Dp; };
  KeyCopies<Dp, wide> next(heads, first_tile * keys);
  auto load_keys = [&](int j) {
    if (j < key_tiles) next.load(stage(j), sight.keys - j * keys, D);
    copy_async_commit();
  };
  load_panels<Dp, queries, wide>(shared_q, heads.q + first * heads.q_stride, heads.q_stride, end - first, D);
  load_keys(first_tile);
  load_keys(first_tile + 1);
  copy_async_wait<1>();
  shared_to_products();
  __syncthreads();
  std::uint32_t q[columns / 16][4];
#pragma unroll
  for (int i = 0; i < columns / 16; ++i)
    load_matrices(q[i], shared_q + panel_chunk_at<queries>(row - first + lane % 16, 2 * i + lane / 16));
  fence_registers(q);
  float scores[1][8][4], out[Dp / 64][8][4], most[1][2] = {{-INFINITY, -INFINITY}}, total[1][2] = {{0, 0}}, rescale[1][2];
  std::uint32_t p[keys / 16][4];
  set_zero(scores);
  set_zero(out);
  auto softmax = [&](int j) {
    fence_registers(scores[0]);
    if (j * keys + keys > sight.of_query(row) || (Seen::documents && j * keys < begins)) mask_unseen_keys(scores, row, j * keys, sight);
    online_softmax(scores, most, total, rescale, scale * log2_e);
  };
  start_scores(scores[0], q, stage(first_tile));
  warpgroup_wait<0>();
  softmax(first_tile);
  // The wait for the outputs stands before the next tile and not behind the softmax: within one pass of the loop the compiler moves it up,
  // and the softmax would wait for the products that it is to run beside.
  auto finish_tile = [&] {
    warpgroup_wait<0>();  // the outputs of the tile before; none yet for the first, where out is 0
#pragma unroll
    for (int n = 0; n < Dp / 64; ++n) fence_registers(out[n]);
    pack_left(p, scores[0]);
#pragma unroll
    for (int n = 0; n < Dp / 64; ++n)
#pragma unroll
      for (int i = 0; i < 32; ++i) out[n][i / 4][i % 4] *= rescale[0][i % 4 / 2];
  };
#pragma unroll 1
  for (int j = first_tile; j + 1 < key_tiles; ++j) {  // scores hold the probabilities of tile j
    finish_tile();
    copy_async_wait<0>();  // tile j + 1
    shared_to_products();
    __syncthreads();  // all see it, and all are done with tile j - 1, where j + 2 goes
    start_scores(scores[0], q, stage(j + 1));
    start_outputs<Dp>(out, p, stage(j) + keys * Dp);
    load_keys(j + 2);     // beside the products
    warpgroup_wait<1>();  // the scores
    softmax(j + 1);
  }
  finish_tile();
  start_outputs<Dp>(out, p, stage(key_tiles - 1) + keys * Dp);
  warpgroup_wait<0>();
#pragma unroll
  for (int n = 0; n < Dp / 64; ++n) fence_registers(out[n]);
  float inverse[1][2];
  finish_softmax(inverse, a.lse + (batch * a.shape.H + head) * a.shape.T, most, total, row, end, scale);
  bf16* to = static_cast<bf16*>(a.out) + batch * a.shape.T * a.shape.H * D + head * D;
  store_panels<Dp>(to, a.shape.H * D, out, inverse, row, end, D);
}

}  // namespace

void attention_forward_warpgroup(const Context& context, const ForwardPass& a) {
  const AttentionShape& s = a.shape;
  const dim3 grid(static_cast<unsigned>(s.H), static_cast<unsigned>(ceil_div(a.queries, queries)), static_cast<unsigned>(s.B));
  with_columns(s.D, [&](auto columns) {
    with_wide(copies_16_bytes(a), [&](auto wide) {
      with_sight(a, [&](auto seen) {
        launch(stream_of(context), grid, block_threads, shared_bytes<columns>, forward<columns, wide, typename decltype(seen)::type>, a,
               1 / sqrtf(static_cast<float>(s.D)));
      });
    });
  });
}

}  // namespace tessera::kernels::cuda
