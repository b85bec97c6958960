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

constexpr int queries = warpgroups * 64, keys = 64, stages = 3;

// Head dims are padded with zeros to `columns`: 64, 96 or 128. The scores are products over those; panels, and the outputs, have 64 or 128.
constexpr int panels_of(int columns) { return (columns + panel_columns - 1) / panel_columns; }
template <int columns>
constexpr std::size_t shared_bytes = sizeof(bf16) * panels_of(columns) * panel_columns*(queries + stages * 2 * keys);

// A warpgroup's scores of a key tile are started: one group of products.
template <int steps>
__device__ __forceinline__ void start_scores(float (&scores)[8][4], const std::uint32_t (&q)[steps][4], const bf16* k) {
  const std::uint32_t address = shared_address(k);
  fence_registers(scores);
  warpgroup_fence();
#pragma unroll
  for (int i = 0; i < steps; ++i)  // 16 columns are 32 bytes of a panel's rows
    start_product<false>(scores, q[i], panel_descriptor(address + i / 4 * keys * 128 + i % 4 * 32), i > 0);
  warpgroup_commit();
}

// The products of a tile with V are started: one group. Output columns 64 n.. come from panel n.
template <int Dp>
__device__ __forceinline__ void start_outputs(float (&out)[Dp / 64][8][4], std::uint32_t (&p)[keys / 16][4], const bf16* v) {
  const std::uint32_t address = shared_address(v);
#pragma unroll
  for (int n = 0; n < Dp / 64; ++n) fence_registers(out[n]);
  fence_registers(p);
  warpgroup_fence();
#pragma unroll
  for (int n = 0; n < Dp / 64; ++n)
#pragma unroll
    for (int k = 0; k < keys / 16; ++k) start_product<true>(out[n], p[k], panel_descriptor(address + n * keys * 128 + k * 16 * 128), true);
  warpgroup_commit();
}

// A head dim of 64 leaves room for two blocks on a multiprocessor: the registers that a later start of copies would cost are the second's.
template <int columns, bool wide>
__global__ void __launch_bounds__(block_threads, columns == 64 ? 2 : 1) forward(AttentionForward a, float scale) {
  constexpr int Dp = panels_of(columns) * panel_columns;
  bf16* shared_q = dynamic_shared<bf16>();
  bf16* ring = shared_q + queries * Dp;  // stages of K (keys, Dp), V (keys, Dp)
  const int T = static_cast<int>(a.shape.T), D = static_cast<int>(a.shape.D);
  const int head = static_cast<int>(blockIdx.x), batch = static_cast<int>(blockIdx.z), lane = lane_index();
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * queries;  // long rows first
  const int row = first + warp_index() * 16, key_tiles = (min(first + queries, T) + keys - 1) / keys;
  const Heads<const bf16> heads(static_cast<const bf16*>(a.qkv), a.shape, batch, head);
  auto stage = [&](int j) { return ring + j % stages * 2 * keys * Dp; };
  auto load_keys = [&](int j) {
    if (j < key_tiles) {
      load_panels<Dp, keys, wide>(stage(j), heads.k + j * keys * heads.stride, heads.stride, T - j * keys, D);
      load_panels<Dp, keys, wide>(stage(j) + keys * Dp, heads.v + j * keys * heads.stride, heads.stride, T - j * keys, D);
    }
    copy_async_commit();
  };
  load_panels<Dp, queries, wide>(shared_q, heads.q + first * heads.stride, heads.stride, T - first, D);
  load_keys(0);
  load_keys(1);
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
    if (j * keys + keys - 1 > row) mask_later_keys(scores, row, j * keys);
    online_softmax(scores, most, total, rescale, scale * log2_e);
  };
  start_scores(scores[0], q, stage(0));
  warpgroup_wait<0>();
  softmax(0);
  // The wait for the outputs stands before the next tile and not behind the softmax: within one pass of the loop the compiler moves it up,
  // and the softmax would wait for the products that it is to run beside.
  auto finish_tile = [&] {
    warpgroup_wait<0>();  // the outputs of the tile before; none yet for tile 0, where out is 0
#pragma unroll
    for (int n = 0; n < Dp / 64; ++n) fence_registers(out[n]);
    pack_left(p, scores[0]);
#pragma unroll
    for (int n = 0; n < Dp / 64; ++n)
#pragma unroll
      for (int i = 0; i < 32; ++i) out[n][i / 4][i % 4] *= rescale[0][i % 4 / 2];
  };
#pragma unroll 1
  for (int j = 0; j + 1 < key_tiles; ++j) {  // scores hold the probabilities of tile j
    finish_tile();
    copy_async_wait<0>();  // tile j + 1
    shared_to_products();
    __syncthreads();  // all see it, and all are done with tile j - 1, where j + 2 goes
    if (Dp == 64) load_keys(j + 2);
    start_scores(scores[0], q, stage(j + 1));
    start_outputs<Dp>(out, p, stage(j) + keys * Dp);
    if (Dp != 64) load_keys(j + 2);  // beside the products
    warpgroup_wait<1>();             // the scores
    softmax(j + 1);
  }
  finish_tile();
  start_outputs<Dp>(out, p, stage(key_tiles - 1) + keys * Dp);
  warpgroup_wait<0>();
#pragma unroll
  for (int n = 0; n < Dp / 64; ++n) fence_registers(out[n]);
  float inverse[1][2];
  finish_softmax(inverse, a.lse + (batch * a.shape.H + head) * T, most, total, row, T, scale);
  bf16* to = static_cast<bf16*>(a.out) + batch * a.shape.T * a.shape.H * D + head * D;
#pragma unroll
  for (int n = 0; n < Dp / 64; ++n) {
    const auto& panel = reinterpret_cast<const float(&)[1][8][4]>(out[n]);
    store_rows<64>(to + 64 * n, a.shape.H * D, panel, inverse, row, T, D - 64 * n);
  }
}

}  // namespace

void attention_forward_warpgroup(const Context& context, const AttentionForward& a) {
  const AttentionShape& s = a.shape;
  const dim3 grid(static_cast<unsigned>(s.H), static_cast<unsigned>(ceil_div(s.T, queries)), static_cast<unsigned>(s.B));
  with_wide(copies_16_bytes(a.qkv, s.D), [&](auto wide) {
    auto launch_kernel = [&](auto padded) {
      launch(stream_of(context), grid, block_threads, shared_bytes<padded>, forward<padded, wide>, a, 1 / sqrtf(static_cast<float>(s.D)));
    };
    if (s.D <= 64)
      launch_kernel(std::integral_constant<int, 64>());
    else if (s.D <= 96)
      launch_kernel(std::integral_constant<int, 96>());
    else
      launch_kernel(std::integral_constant<int, 128>());
  });
}

}  // namespace tessera::kernels::cuda
