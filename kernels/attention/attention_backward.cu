// Backward pass in bf16 and fp16, without atomics: every sum is taken by one warp in a fixed order.
//
//   P = 2^(S - lse), dV = P^T dO, dP = dO V^T, dS = P (dP - delta), dK = scale dS^T Q, dQ = scale dS K
//
// With a cap S is cap x, where x is the tanh of scale Q K^T / cap, and dS is P (dP - delta) (1 - x^2).
//
// One kernel owns key tiles and sums dK and dV over the query heads of the group and their query tiles; another owns query tiles and sums
// dQ over key tiles. Both compute S and dP, so a pair of query and visible key costs 14 D flops and not 10. The other way, one kernel that
// adds each tile's dQ to partial sums of its own, would read and write them once a tile: 8 D bytes for each row of dQ that a tile of 64
// keys saves 256 D flops on, and memory for as many copies of dQ in fp32 as there are splits; a GPU that does 800 TFLOP/s with 4 TB/s of
// memory recomputes faster.
//
// Bound by tensor-core flops; where a warp owns 16 rows, by shared memory that feeds them. Not yet measured.
#include "kernels/attention/tensor_core_tiles.hpp"
#include "kernels/cuda/vector.hpp"

namespace tessera::kernels::cuda {
namespace {
using namespace tensor_core_tiles;

// A block owns warps * 16 M rows of one kind and walks tiles of `step` rows of the other. Above head dim 128, registers hold dK or dV but
// not both: each is made by a launch of its own.
template <class Dims>
struct KeyTiles {
  static constexpr int Dp = Dims::Dp;
  static constexpr bool together = Dp <= 128;
  static constexpr int M = Dp <= 64 ? 2 : 1, keys = warps * 16 * M, step = Dp == 96 ? 64 : Dp == 256 ? 16 : 32;  // in 99 KiB
  static constexpr std::size_t shared_bytes = half_bytes * (Dp + Dims::Dvp) * (keys + 2 * step) + sizeof(float) * 4 * step;
};
template <class Dims>
struct QueryTiles {
  static constexpr int Dp = Dims::Dp;
  static constexpr int M = Dp <= 128 ? 2 : 1, queries = warps * 16 * M, step = Dp == 256 ? 16 : 32;
  static constexpr std::size_t shared_bytes = half_bytes * (Dp + Dims::Dvp) * (queries + 2 * step) + sizeof(float) * 2 * queries;
};

// What one step needs of a query head: Q (step, Dp), dO (step, Dvp), lse and delta (step), in shared memory.
template <class T, class Dims, int step>
struct QueryStage {
  static constexpr int size = step * (Dims::Dp + Dims::Dvp);
  T *q, *d_out;
  float *lse, *delta;
  __device__ __forceinline__ QueryStage(T* stages, int which)
      : q(stages + which * size),
        d_out(q + step * Dims::Dp),
        lse(reinterpret_cast<float*>(stages + 2 * size) + which * 2 * step),
        delta(lse + step) {}
  __device__ __forceinline__ void load_terms(const RowTerms& terms, std::int64_t at) const {
    const int i = static_cast<int>(threadIdx.x) * 4;
    if (i < step)
      copy_async_16(lse + i, terms.lse_base2 + at + i, 16);
    else if (i < 2 * step)
      copy_async_16(lse + i, terms.delta + at + i - step, 16);
  }
};

template <class T, class Dims, bool wide, class Seen, bool with_keys, bool with_values>
__global__ void __launch_bounds__(threads) backward_of_keys(BackwardPass a, RowTerms terms, ScoreScale scale) {
  using Tiles = KeyTiles<Dims>;
  constexpr int Dp = Dims::Dp, Dvp = Dims::Dvp, M = Tiles::M, keys = Tiles::keys, step = Tiles::step;
  using Stage = QueryStage<T, Dims, step>;
  T* k = dynamic_shared<T>();
  T* v = k + keys * Dp;
  T* stages = v + keys * Dvp;
  const int end = static_cast<int>(a.queries), D = static_cast<int>(a.shape.D), Dv = Dims::Dv(a.shape);
  const int group = static_cast<int>(a.shape.H / a.shape.G), first = static_cast<int>(blockIdx.y) * keys;
  const Seen sight(a, blockIdx.z);
  const int stop = sight.end_of_key(min(first + keys, sight.keys) - 1, end);
  auto load_queries = [&](int h, int query, int which) {
    const std::int64_t head = hidden(blockIdx.x) * group + h, batch = hidden(blockIdx.z), out_stride = a.shape.H * Dv;
    const Heads<const T> heads = inputs_of<T, Dims::same>(a, batch, head);
    const Stage stage(stages, which);
    load_rows<Dp, step, wide>(stage.q, heads.q + query * heads.q_stride, heads.q_stride, end - query, D);
    load_rows<Dvp, step, wide>(stage.d_out, static_cast<const T*>(a.d_out) + (batch * a.shape.T + query) * out_stride + head * Dv,
                               out_stride, end - query, Dv);
    stage.load_terms(terms, (batch * a.shape.H + head) * terms.rows + query);
    copy_async_commit();
  };
  const Heads<const T> heads = inputs_of<T, Dims::same>(a, blockIdx.z, blockIdx.x * group);
  load_rows<Dp, keys, wide>(k, heads.k + first * heads.k_stride, heads.k_stride, sight.keys - first, D);
  if (with_keys) load_rows<Dvp, keys, wide>(v, heads.v + first * heads.v_stride, heads.v_stride, sight.keys - first, Dv);
  load_queries(0, sight.first_of_key(first), 0);
  float d_k[M][Dp / 8][4], d_v[M][Dvp / 8][4];
  set_zero(d_k);
  set_zero(d_v);
  int h = 0, query = sight.first_of_key(first), which = 0;
#pragma unroll 1
  while (h < group) {
    copy_async_wait<0>();
    __syncthreads();  // this tile is there for all, and nobody reads the other stage any more
    const Stage stage(stages, which);
    const int at = query;
    query += step;
    if (query >= stop) query = sight.first_of_key(first), ++h;  // the next head begins at its diagonal
    which ^= 1;
    if (h < group) load_queries(h, query, which);
    const int row = first + hidden(threadIdx.x) / warp_lanes * 16 * M;           // here and not before the loop: registers are short
    if (at + step - 1 < sight.first_of_key(row)) continue;                       // all before this warp's keys
    if (Seen::bounded && sight.begin_of_query(at) > row + 16 * M - 1) continue;  // none of these queries sees them
    float p[M][step / 8][4];
    multiply_rows<Dp>(p, k, row - first, stage.q);
    if constexpr (Seen::capped) bend(p, scale.bend);
    if constexpr (Seen::capped && with_keys) {  // what a cap leaves of gradients is known as long as p is not yet a probability
      mask_unseen_queries(p, row, at, sight, unseen_tanh);
      float d_p[M][step / 8][4];
      multiply_rows<Dvp>(d_p, v, row - first, stage.d_out);
      capped_gradients(p, d_p, stage.lse, stage.delta, scale.cap * log2_e);
      if (with_values) add_product<Dvp>(d_v, p, stage.d_out);
      add_product<Dp>(d_k, d_p, stage.q);
      continue;
    }
    probabilities(p, stage.lse, row, at, sight, scale.of_softmax<Seen>() * log2_e);
    if (with_values) add_product<Dvp>(d_v, p, stage.d_out);
    if (!with_keys) continue;
    float d_p[M][step / 8][4];
    multiply_rows<Dvp>(d_p, v, row - first, stage.d_out);
    times_difference(p, d_p, stage.delta);
    add_product<Dp>(d_k, p, stage.q);
  }
  const Heads<T> to = gradients_of<T, Dims::same>(a, blockIdx.z, blockIdx.x * group);
  const int row = first + warp_index() * 16 * M;
  float factor[M][2];
  for (int i = 0; i < 2 * M; ++i) factor[i / 2][i % 2] = scale.of_products;
  if (with_keys) store_rows<Dp>(to.k, to.k_stride, d_k, factor, row, sight.keys, D);
  for (int i = 0; i < 2 * M; ++i) factor[i / 2][i % 2] = 1;
  if (with_values) store_rows<Dvp>(to.v, to.v_stride, d_v, factor, row, sight.keys, Dv);
}

// Rows are queries, columns keys: scores become their gradients. lse and delta are by row.
template <int M, int N, class Seen>
__device__ __forceinline__ void score_gradients(float (&scores)[M][N][4], const float (&d_p)[M][N][4], const float* lse, const float* delta,
                                                int query, int key, const Seen& sight, float scale_base2) {
  const int lane = lane_index();
  const bool edge = key + 8 * N > sight.of_query(query) || key < sight.begin_of_query(query + 16 * M - 1);
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * m + 8 * half + lane / 4;
      const int seen = sight.of_query(query + row), begin = sight.begin_of_query(query + row);
      const float shift = lse[row], subtract = delta[row];
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          const float left =
              Seen::capped ? fmaf(-scores[m][n][i], scores[m][n][i], 1) * (d_p[m][n][i] - subtract) : d_p[m][n][i] - subtract;
          const float d_s = exp2_approximate(fmaf(scores[m][n][i], scale_base2, -shift)) * left;
          const int column = key + 8 * n + lane % 4 * 2 + i % 2;
          scores[m][n][i] = edge && (column >= seen || column < begin) ? 0 : d_s;
        }
    }
}

template <class T, class Dims, bool wide, class Seen>
__global__ void __launch_bounds__(threads) backward_of_queries(BackwardPass a, RowTerms terms, ScoreScale scale) {
  using Tiles = QueryTiles<Dims>;
  constexpr int Dp = Dims::Dp, Dvp = Dims::Dvp, stage_size = Tiles::step * (Dp + Dvp), M = Tiles::M, queries = Tiles::queries,
                step = Tiles::step;
  T* q = dynamic_shared<T>();
  T* d_out = q + queries * Dp;
  T* stages = d_out + queries * Dvp;                               // two of K (step, Dp), V (step, Dvp)
  float* lse = reinterpret_cast<float*>(stages + 2 * stage_size);  // here and not in registers, which are short
  float* delta = lse + queries;
  const int end = static_cast<int>(a.queries), D = static_cast<int>(a.shape.D), Dv = Dims::Dv(a.shape);
  const int head = static_cast<int>(blockIdx.x), batch = static_cast<int>(blockIdx.z);
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * queries;  // long rows first
  const Seen sight(a, batch);
  const int key_tiles = (sight.of_query(first + queries - 1) + step - 1) / step;
  const int first_tile = min(sight.begin_of_query(first) / step, key_tiles - 1);
  const std::int64_t out_stride = a.shape.H * Dv;
  auto load_keys = [&](int j) {
    const Heads<const T> heads = inputs_of<T, Dims::same>(a, hidden(blockIdx.z), hidden(blockIdx.x));
    T* stage = stages + j % 2 * stage_size;
    load_rows<Dp, step, wide>(stage, heads.k + j * step * heads.k_stride, heads.k_stride, sight.keys - j * step, D);
    load_rows<Dvp, step, wide>(stage + step * Dp, heads.v + j * step * heads.v_stride, heads.v_stride, sight.keys - j * step, Dv);
    copy_async_commit();
  };
  const Heads<const T> heads = inputs_of<T, Dims::same>(a, batch, head);
  load_rows<Dp, queries, wide>(q, heads.q + first * heads.q_stride, heads.q_stride, end - first, D);
  load_rows<Dvp, queries, wide>(d_out, static_cast<const T*>(a.d_out) + (batch * a.shape.T + first) * out_stride + head * Dv, out_stride,
                                end - first, Dv);
  load_keys(first_tile);
  for (int i = static_cast<int>(threadIdx.x); i < queries; i += threads) {
    lse[i] = terms.lse_base2[(batch * a.shape.H + head) * terms.rows + first + i];
    delta[i] = terms.delta[(batch * a.shape.H + head) * terms.rows + first + i];
  }
  float d_q[M][Dp / 8][4], factor[M][2];
  set_zero(d_q);
#pragma unroll 1
  for (int j = first_tile; j < key_tiles; ++j) {
    copy_async_wait<0>();
    __syncthreads();  // tile j is there for all, and nobody reads the other stage any more
    if (j + 1 < key_tiles) load_keys(j + 1);
    const int row = first + hidden(threadIdx.x) / warp_lanes * 16 * M;
    if (j * step >= sight.of_query(row + 16 * M - 1)) continue;                   // all after this warp's queries
    if (Seen::bounded && j * step + step <= sight.begin_of_query(row)) continue;  // all before their first keys
    const T* stage = stages + j % 2 * stage_size;
    float p[M][step / 8][4], d_p[M][step / 8][4];
    multiply_rows<Dp>(p, q, row - first, stage);
    multiply_rows<Dvp>(d_p, d_out, row - first, stage + step * Dp);
    if constexpr (Seen::capped) bend(p, scale.bend);
    score_gradients(p, d_p, lse + row - first, delta + row - first, row, j * step, sight, scale.of_softmax<Seen>() * log2_e);
    add_product<Dp>(d_q, p, stage);
  }
  const Heads<T> to = gradients_of<T, Dims::same>(a, batch, head);
  for (int i = 0; i < 2 * M; ++i) factor[i / 2][i % 2] = scale.of_products;
  const int row = first + warp_index() * 16 * M;
  store_rows<Dp>(to.q, to.q_stride, d_q, factor, row, end, D);
}

template <class T, class Dims, bool wide, class Seen>
void launch_both(const Context& context, const BackwardPass& a, const RowTerms& terms) {
  using Keys = KeyTiles<Dims>;
  using Queries = QueryTiles<Dims>;
  const AttentionShape& s = a.shape;
  const ScoreScale scale(s);
  const dim3 key_grid(static_cast<unsigned>(s.G), static_cast<unsigned>(ceil_div(a.keys, Keys::keys)), static_cast<unsigned>(s.B));
  auto launch_keys = [&](auto kernel) { launch(stream_of(context), key_grid, threads, Keys::shared_bytes, kernel, a, terms, scale); };
  if constexpr (Keys::together) {
    launch_keys(backward_of_keys<T, Dims, wide, Seen, true, true>);
  } else {
    launch_keys(backward_of_keys<T, Dims, wide, Seen, true, false>);
    launch_keys(backward_of_keys<T, Dims, wide, Seen, false, true>);
  }
  const dim3 query_grid(static_cast<unsigned>(s.H), static_cast<unsigned>(ceil_div(a.queries, Queries::queries)),
                        static_cast<unsigned>(s.B));
  launch(stream_of(context), query_grid, threads, Queries::shared_bytes, backward_of_queries<T, Dims, wide, Seen>, a, terms, scale);
}

}  // namespace

void attention_backward_half(const Context& context, const BackwardPass& a, const RowTerms& terms) {
  with_sight(a, [&](auto seen) {
    using Seen = typename decltype(seen)::type;
    with_head_dims<Seen>(a.shape, a.is_uniform(), [&](auto dims) {
      with_wide(copies_16_bytes(a), [&](auto wide) {
        with_half_type(a.shape.dtype, [&](auto type) { launch_both<decltype(type), decltype(dims), wide, Seen>(context, a, terms); });
      });
    });
  });
}

}  // namespace tessera::kernels::cuda
