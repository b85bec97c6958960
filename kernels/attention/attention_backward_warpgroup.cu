// Backward pass in bf16 and fp16 for Hopper: the two kernels of attention_backward.cu, one that owns keys and one that owns queries, on
// products that run beside other code. No atomics: every sum is taken by one warpgroup in a fixed order. A block of keys walks the queries
// of one head; where a group has several, dK and dV of each go to the workspace and a third kernel adds them in order. With the walk over a
// whole group few and long blocks would leave multiprocessors idle: Llama 3 70B over eight tensor-parallel ranks has one group.
//
//   P = 2^(S - lse), dV = P^T dO, dP = dO V^T, dS = P (dP - delta), dK = scale dS^T Q, dQ = scale dS K
//
// Bound by tensor-core flops, 14 D a pair of query and visible key: 8 D for dK and dV, 6 D for dQ; D counts as in the forward pass. Shared
// memory comes close: for its 65536 multiply-adds a product of 64 x 64 x 16 reads 2 KiB, or 4 KiB where the left operand too is there and
// not in registers: half of the products in the kernel of keys, a third in that of queries. Not yet measured.
#include "kernels/attention/warpgroup_tiles.hpp"
#include "kernels/cuda/vector.hpp"

namespace tessera::kernels::cuda {
namespace {
using namespace warpgroup_tiles;

template <int columns>
constexpr std::size_t shared_bytes = half_bytes* padded_columns(columns) * (2 * rows + stages * 2 * step) +
                                     sizeof(float) * (stages * 2 * step + rows);
static_assert(1024 + shared_bytes<128> < 1 << 18);  // with what the driver takes: further() counts on it

// What a tile of queries of one head brings: Q (step, Dp), dO (step, Dp), lse and delta (step), in shared memory.
template <class T, int Dp>
struct QueryStage {
  T *q, *d_out;
  float *lse, *delta;
  __device__ __forceinline__ QueryStage(T* ring, int which)
      : q(ring + which * 2 * step * Dp),
        d_out(q + step * Dp),
        lse(reinterpret_cast<float*>(ring + stages * 2 * step * Dp) + which * 2 * step),
        delta(lse + step) {}
};

// A thread's copies of a head's tiles of queries, from row `query` on. The strides are not kept: registers are short.
template <class T, int Dp, bool wide>
struct QueryCopies {
  const T *q, *d_out;
  const float* term;  // lse, then delta, which follows it in a stage
  __device__ __forceinline__ QueryCopies(const BackwardPass& a, const RowTerms& terms, const Heads<const T>& heads, std::int64_t batch,
                                         std::int64_t head, int query) {
    const Copies<Dp> mine;
    const std::int64_t out_stride = a.shape.H * a.shape.D, at = (batch * a.shape.H + head) * terms.rows + query;
    const int i = static_cast<int>(threadIdx.x) * 4;
    q = mine.source(heads.q + query * heads.q_stride, heads.q_stride);
    d_out = mine.source(static_cast<const T*>(a.d_out) + (batch * a.shape.T + query) * out_stride + head * a.shape.D, out_stride);
    term = i < step ? terms.lse_base2 + at + i : terms.delta + at + i - step;
  }
  __device__ __forceinline__ void load(const QueryStage<T, Dp>& stage, std::int64_t stride, std::int64_t out_stride, int valid, int D) {
    load_panels_from<Dp, step, wide>(stage.q, q, stride, valid, D);
    load_panels_from<Dp, step, wide>(stage.d_out, d_out, out_stride, valid, D);
    const int i = static_cast<int>(threadIdx.x) * 4;
    if (i < 2 * step) copy_async_16(stage.lse + i, term, 16);
    q += step * stride;
    d_out += step * out_stride;
    term += step;
  }
};

// A warp's 16 rows of a part (end, D), in fp32.
template <int Dp>
__device__ __forceinline__ void store_part(float* to, const float (&c)[Dp / 64][8][4], float factor, int first, int end, int D) {
  const int lane = lane_index();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + 8 * half + lane / 4;
    if (row >= end) continue;
    float* out = to + static_cast<std::int64_t>(row) * D + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < Dp / 8; ++n)
      if (8 * n + lane % 4 * 2 < D)
        *reinterpret_cast<float2*>(out + 8 * n) = {c[n / 8][n % 8][2 * half] * factor, c[n / 8][n % 8][2 * half + 1] * factor};
  }
}

// Rows are keys, columns queries: what stands for queries from a key's `ends` on becomes `unseen`. `ends` is that of the warp's first row.
// By key, since all columns' first keys would take more registers than there are.
__device__ __forceinline__ void mask_ended(float (&p)[1][8][4], const int* ends, int query, float unseen) {
  const int lane = lane_index();
  if (query + step <= ends[0]) return;
  const int end[2] = {ends[lane / 4], ends[lane / 4 + 8]};
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (query + 8 * n + lane % 4 * 2 + i % 2 >= end[i / 2]) p[0][n][i] = unseen;
}

// With a cap, x the tanh of scores and unseen_tanh where they are not seen: p in T, by the queries' lse, as left operands of products, and
// x becomes p (1 - x^2), which is to be multiplied by d_p - delta.
template <class T>
__device__ __forceinline__ void pack_capped(std::uint32_t (&p)[step / 16][4], float (&x)[8][4], const float* lse, float cap_base2) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const int column = 8 * n + lane_index() % 4 * 2;
    const float shift[2] = {lse[column], lse[column + 1]};
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      float pair[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        pair[e] = exp2_approximate(fmaf(x[n][i + e], cap_base2, -shift[e]));
        x[n][i + e] = pair[e] * fmaf(-x[n][i + e], x[n][i + e], 1);
      }
      p[n / 2][n % 2 * 2 + i / 2] = pack<T>(pair[0], pair[1]);
    }
  }
}

// A warpgroup owns 64 keys and walks the query tiles of a head from the diagonal on, to the last that sees the block's last key.
// Exponentials run beside dP, its difference from delta beside the product for dV, and the next tile's start beside that for dK.
template <class T, int columns, bool wide, class Seen>
__global__ void __launch_bounds__(block_threads, 1) backward_of_keys(BackwardPass a, RowTerms terms, ScoreScale scale) {
  constexpr int Dp = padded_columns(columns);
  using Stage = QueryStage<T, Dp>;
  T* k = dynamic_shared<T>();
  T* v = k + rows * Dp;
  T* ring = v + rows * Dp;
  int* ends = reinterpret_cast<int*>(ring + stages * 2 * step * Dp) + stages * 2 * step;  // of each key, the queries that see it
  const int D = static_cast<int>(a.shape.D), first = static_cast<int>(blockIdx.y) * rows;
  const Seen sight(a, blockIdx.z);
  // Where no query sees these keys, of a block, one is looked at: there is a tile.
  const int end = max(sight.end_of_key(min(first + rows, sight.keys) - 1, static_cast<int>(a.queries)), sight.first_of_key(first) + 1);
  if (Seen::bounded && threadIdx.x < rows)
    ends[threadIdx.x] = sight.end_of_key(first + static_cast<int>(threadIdx.x), static_cast<int>(a.queries));
  const Heads<const T> heads = inputs_of<T, true>(a, blockIdx.z, blockIdx.x);
  QueryCopies<T, Dp, wide> next(a, terms, heads, blockIdx.z, blockIdx.x, sight.first_of_key(first));
  auto load_queries = [&](int which, int query) {
    if (query < end) next.load(Stage(ring, which), heads.q_stride, a.shape.H * D, end - query, D);
    copy_async_commit();
  };
  load_panels<Dp, rows, wide>(k, heads.k + first * heads.k_stride, heads.k_stride, sight.keys - first, D);
  load_panels<Dp, rows, wide>(v, heads.v + first * heads.k_stride, heads.k_stride, sight.keys - first, D);
  load_queries(0, sight.first_of_key(first));
  float scores[1][8][4], d_p[1][8][4], d_k[Dp / 64][8][4], d_v[Dp / 64][8][4];
  std::uint32_t p[step / 16][4], d_s[step / 16][4];
  set_zero(scores);
  set_zero(d_p);
  set_zero(d_k);
  set_zero(d_v);
  int query = sight.first_of_key(first), which = 0;
  do {  // There is a tile. ptxas must see it: of a loop that may not run it makes one product after the other (C7515).
    copy_async_wait<0>();
    shared_to_products();
    __syncthreads();  // this tile is there for all, and all are done with the one before the last, where the next goes
    const Stage stage(ring, which);
    const int at = query;
    const int own = hidden(threadIdx.x) / warpgroup_lanes * 64 * panel_columns;  // this warpgroup's rows in a tile's first panel
    start_scores<columns / 16>(scores[0], k + own, stage.q);
    start_scores<columns / 16>(d_p[0], v + own, stage.d_out);
    query += step;
    which = which == stages - 1 ? 0 : which + 1;
    load_queries(which, query);
    warpgroup_wait<1>();  // the scores, and all of the tile before
    fence_registers(scores[0]);
    const int row = hidden(threadIdx.x) / warp_lanes * 16;
    if constexpr (Seen::capped) {
      bend(scores, scale.bend);
      mask_unseen_queries(scores, first + row, at, Sight(a), unseen_tanh);
      mask_ended(scores, ends + row, at, unseen_tanh);
      pack_capped<T>(p, scores[0], stage.lse, scale.cap * log2_e);
    } else {
      probabilities(scores, stage.lse, first + row, at, Sight(a), scale.of_products * log2_e);
      if (Seen::bounded) mask_ended(scores, ends + row, at, 0);
      pack_left<T>(p, scores[0]);
    }
    start_outputs<Dp>(d_v, p, stage.d_out);
    warpgroup_wait<1>();  // dP
    fence_registers(d_p[0]);
    times_difference(scores, d_p, stage.delta);
    pack_left<T>(d_s, scores[0]);
    start_outputs<Dp>(d_k, d_s, stage.q);
  } while (query < end);
  warpgroup_wait<0>();
#pragma unroll
  for (int n = 0; n < Dp / 64; ++n) fence_registers(d_k[n]), fence_registers(d_v[n]);
  const int row = first + warp_index() * 16;
  if (terms.parts) {
    const std::int64_t of_head = a.keys * D, size = a.shape.H * of_head;
    float* part = terms.parts + blockIdx.z * size + blockIdx.x * of_head;
    store_part<Dp>(part, d_k, scale.of_products, row, sight.keys, D);
    store_part<Dp>(part + a.shape.B * size, d_v, 1, row, sight.keys, D);
    return;
  }
  const Heads<T> to = gradients_of<T, true>(a, blockIdx.z, blockIdx.x);
  store_panels<Dp>(to.k, to.k_stride, d_k, {{scale.of_products, scale.of_products}}, row, sight.keys, D);
  store_panels<Dp>(to.v, to.k_stride, d_v, {{1, 1}}, row, sight.keys, D);
}

// Rows are queries, columns keys: scores become probabilities, those of unseen keys 0, and with a cap what it leaves of their gradients.
// lse is that of the lane's two rows.
template <class Seen>
__device__ __forceinline__ void probabilities_of_queries(float (&scores)[8][4], const float (&lse)[2], int query, int key,
                                                         const Seen& sight, const ScoreScale& scale) {
  const int lane = lane_index();
  const float scale_base2 = scale.of_softmax<Seen>() * log2_e;
  if constexpr (Seen::capped) bend(scores, scale.bend);
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float p = exp2_approximate(fmaf(scores[n][i], scale_base2, -lse[i / 2]));
      scores[n][i] = Seen::capped ? p * fmaf(-scores[n][i], scores[n][i], 1) : p;
    }
  if (Seen::bounded && key < sight.begin_of_query(query + 15)) {
    const int begin[2] = {sight.begin_of_query(query + lane / 4), sight.begin_of_query(query + lane / 4 + 8)};
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (key + 8 * n + lane % 4 * 2 + i % 2 < begin[i / 2]) scores[n][i] = 0;
  }
  if (key + step <= sight.of_query(query)) return;
  const int seen[2] = {sight.of_query(query + lane / 4), sight.of_query(query + lane / 4 + 8)};
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (key + 8 * n + lane % 4 * 2 + i % 2 >= seen[i / 2]) scores[n][i] = 0;
}

// A warpgroup owns 64 queries, with Q in registers, and walks the key tiles from its first key's up to its diagonal. Exponentials of
// tile j + 1 run beside its dP and the product of tile j for dQ.
template <class T, int columns, bool wide, class Seen>
__global__ void __launch_bounds__(block_threads, 1) backward_of_queries(BackwardPass a, RowTerms terms, ScoreScale scale) {
  constexpr int Dp = padded_columns(columns);
  T* shared_q = dynamic_shared<T>();
  T* d_out = shared_q + rows * Dp;
  T* ring = d_out + rows * Dp;  // stages of K (step, Dp), V (step, Dp)
  const int end = static_cast<int>(a.queries), D = static_cast<int>(a.shape.D), lane = lane_index();
  const int head = static_cast<int>(blockIdx.x), batch = static_cast<int>(blockIdx.z);
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * rows;  // long rows first
  const Seen sight(a, batch);
  const int row = first + warp_index() * 16;
  const int key_tiles = (sight.of_query(first + rows - 1) + step - 1) / step;
  const int first_tile = min(sight.begin_of_query(first) / step, key_tiles - 1);  // there is a tile, if only one that nobody sees
  const std::int64_t out_stride = a.shape.H * D, term = (batch * a.shape.H + head) * terms.rows + row + lane / 4;
  const Heads<const T> heads = inputs_of<T, true>(a, batch, head);
  auto stage = [&](int j) { return ring + j % stages * 2 * step * Dp; };
  KeyCopies<T, Dp, wide> next(heads, first_tile * step);
  auto load_keys = [&](int j) {
    if (j < key_tiles) next.load(stage(j), sight.keys - j * step, D);
    copy_async_commit();
  };
  load_panels<Dp, rows, wide>(shared_q, heads.q + first * heads.q_stride, heads.q_stride, end - first, D);
  load_panels<Dp, rows, wide>(d_out, static_cast<const T*>(a.d_out) + (batch * a.shape.T + first) * out_stride + head * D, out_stride,
                              end - first, D);
  load_keys(first_tile);
  load_keys(first_tile + 1);
  const float lse[2] = {terms.lse_base2[term], terms.lse_base2[term + 8]}, delta[2] = {terms.delta[term], terms.delta[term + 8]};
  copy_async_wait<1>();
  shared_to_products();
  __syncthreads();
  std::uint32_t q[columns / 16][4], d_s[step / 16][4];
#pragma unroll
  for (int i = 0; i < columns / 16; ++i) load_matrices(q[i], shared_q + panel_chunk_at<rows>(row - first + lane % 16, 2 * i + lane / 16));
  fence_registers(q);
  d_out += warp_index() / 4 * 64 * panel_columns;  // this warpgroup's rows
  float scores[8][4], d_p[1][8][4], d_q[Dp / 64][8][4];
#pragma unroll
  for (int i = 0; i < 32; ++i) scores[i / 4][i % 4] = 0;
  set_zero(d_p);
  set_zero(d_q);
  // The wait stands before the next tile for the reason that it does in the forward pass.
  auto finish_tile = [&] {
    warpgroup_wait<0>();  // dP, and dQ of the tile before
#pragma unroll
    for (int n = 0; n < Dp / 64; ++n) fence_registers(d_q[n]);
    fence_registers(d_p[0]);
#pragma unroll
    for (int i = 0; i < 32; ++i) scores[i / 4][i % 4] *= d_p[0][i / 4][i % 4] - delta[i % 4 / 2];
    pack_left<T>(d_s, scores);
  };
  start_scores(scores, q, stage(first_tile));
  start_scores<columns / 16>(d_p[0], d_out, stage(first_tile) + step * Dp);
  warpgroup_wait<0>();
  fence_registers(scores);
  probabilities_of_queries(scores, lse, row, first_tile * step, sight, scale);
#pragma unroll 1
  for (int j = first_tile; j + 1 < key_tiles; ++j) {  // scores hold the probabilities of tile j
    finish_tile();
    copy_async_wait<0>();  // tile j + 1
    shared_to_products();
    __syncthreads();  // all see it, and all are done with tile j - 1, where j + 2 goes
    start_scores(scores, q, stage(j + 1));
    start_scores<columns / 16>(d_p[0], d_out, stage(j + 1) + step * Dp);
    start_outputs<Dp>(d_q, d_s, stage(j));
    load_keys(j + 2);
    warpgroup_wait<2>();  // the scores
    fence_registers(scores);
    probabilities_of_queries(scores, lse, row, (j + 1) * step, sight, scale);
  }
  finish_tile();
  start_outputs<Dp>(d_q, d_s, stage(key_tiles - 1));
  warpgroup_wait<0>();
#pragma unroll
  for (int n = 0; n < Dp / 64; ++n) fence_registers(d_q[n]);
  const Heads<T> to = gradients_of<T, true>(a, batch, head);
  store_panels<Dp>(to.q, to.q_stride, d_q, {{scale.of_products, scale.of_products}}, row, end, D);
}

// dK and dV of a key/value head: the parts of its group's query heads, added in order; a thread takes N columns of each. Bound by memory:
// reads the parts, 8 H D bytes a token, once. Not yet measured.
template <class T, int N>
__global__ void __launch_bounds__(block_threads) add_parts(BackwardPass a, const float* parts) {
  const AttentionShape& s = a.shape;
  const std::int64_t size = a.keys * s.D, i = (static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x) * N;
  if (i >= size) return;
  const std::int64_t group = s.H / s.G, head = blockIdx.y * group, t = i / s.D, column = i - t * s.D;
  const Heads<T> to = gradients_of<T, true>(a, blockIdx.z, head);
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const float* part = parts + ((which * s.B + blockIdx.z) * s.H + head) * size + i;
    float sum[N] = {};
    for (std::int64_t h = 0; h < group; ++h, part += size) {
      const Vector<float, N> x = load<std::true_type, N>(part, 0, N);
#pragma unroll
      for (int e = 0; e < N; ++e) sum[e] += x.value[e];
    }
    T* row = (which == 0 ? to.k : to.v) + t * to.k_stride + column;
#pragma unroll
    for (int e = 0; e < N; e += 2) *reinterpret_cast<std::uint32_t*>(row + e) = pack<T>(sum[e], sum[e + 1]);
  }
}

}  // namespace

void attention_backward_warpgroup(const Context& context, const BackwardPass& a, const RowTerms& terms) {
  const AttentionShape& s = a.shape;
  const ScoreScale scale(s);
  const auto batches = static_cast<unsigned>(s.B);
  with_sight(a, [&](auto seen) {
    using Seen = typename decltype(seen)::type;
    with_columns<Seen>(s.D, [&](auto columns) {
      with_wide(copies_16_bytes(a), [&](auto wide) {
        auto launch_kernel = [&](auto kernel, std::int64_t owned) {
          const dim3 grid(static_cast<unsigned>(s.H), static_cast<unsigned>(ceil_div(owned, rows)), batches);
          launch(stream_of(context), grid, block_threads, shared_bytes<columns>, kernel, a, terms, scale);
        };
        with_half_type(s.dtype, [&](auto type) {
          using T = decltype(type);
          launch_kernel(backward_of_keys<T, columns, wide, Seen>, a.keys);
          launch_kernel(backward_of_queries<T, columns, wide, Seen>, a.queries);
        });
      });
    });
  });
  if (terms.parts) {
    const int columns = s.D % 4 == 0 ? 4 : 2;
    const dim3 grid(static_cast<unsigned>(ceil_div(a.keys * s.D, std::int64_t{block_threads} * columns)), static_cast<unsigned>(s.G),
                    batches);
    with_half_type(s.dtype, [&](auto type) {
      using T = decltype(type);
      launch(stream_of(context), grid, block_threads, 0, columns == 4 ? add_parts<T, 4> : add_parts<T, 2>, a, terms.parts);
    });
  }
}

}  // namespace tessera::kernels::cuda
