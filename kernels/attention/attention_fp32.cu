// Both passes in fp32, for fixtures and comparisons: the same tiles as in bf16, on the plain multiply-add units. A block of 16 x 16 threads
// owns 16 R rows; thread (y, x) holds rows y + 16 i of a tile's scores at columns x + 16 j, and of its outputs at columns 4 x + 64 j ...
// Bound by reads of shared memory, one float for every two multiply-adds. Not yet measured.
#include <type_traits>

#include "kernels/attention/attention_kernels.hpp"
#include "kernels/attention/softcap.hpp"

namespace tessera::kernels::cuda {
namespace {
using namespace tessera::cuda;

constexpr int side = 16, threads = side * side;

// Both widths of heads are padded with zeros to Dp. Rows of a tile lie Dp + 4 apart, so that the float4 of 8 rows are in different banks.
template <int Dp>
struct Tiles {
  static constexpr int R = Dp <= 64 ? 4 : Dp <= 128 ? 2 : 1;  // four tiles fit 99 KiB, all that a block of an RTX 4090 may have
  static constexpr int rows = side * R, stride = Dp + 4, p_stride = rows + 4;
  static constexpr std::size_t shared_bytes(int tiles) { return sizeof(float) * (tiles * rows * stride + rows * p_stride); }
};

__device__ __forceinline__ int thread_x() { return static_cast<int>(threadIdx.x) % side; }
__device__ __forceinline__ int thread_y() { return static_cast<int>(threadIdx.x) / side; }

template <int Dp>
__device__ __forceinline__ void load_rows(float* tile, const float* from, std::int64_t stride, int valid, int D) {
  for (int i = static_cast<int>(threadIdx.x); i < Tiles<Dp>::rows * Dp; i += threads) {
    const int row = i / Dp, d = i % Dp;
    tile[row * Tiles<Dp>::stride + d] = row < valid && d < D ? from[row * stride + d] : 0;
  }
}

// c = left right^T
template <int Dp, int R = Tiles<Dp>::R>
__device__ __forceinline__ void multiply_rows(float (&c)[R][R], const float* left, const float* right) {
  for (int i = 0; i < R * R; ++i) c[i / R][i % R] = 0;
#pragma unroll 4
  for (int d = 0; d < Dp; d += 4) {
    float4 a[R], b[R];
#pragma unroll
    for (int i = 0; i < R; ++i) {
      a[i] = *reinterpret_cast<const float4*>(left + (thread_y() + side * i) * Tiles<Dp>::stride + d);
      b[i] = *reinterpret_cast<const float4*>(right + (thread_x() + side * i) * Tiles<Dp>::stride + d);
    }
#pragma unroll
    for (int i = 0; i < R; ++i)
#pragma unroll
      for (int j = 0; j < R; ++j) {
        c[i][j] = fmaf(a[i].x, b[j].x, c[i][j]);
        c[i][j] = fmaf(a[i].y, b[j].y, c[i][j]);
        c[i][j] = fmaf(a[i].z, b[j].z, c[i][j]);
        c[i][j] = fmaf(a[i].w, b[j].w, c[i][j]);
      }
  }
}

// c += p right. p goes through shared memory: the 16 threads of a row, half a warp, write it and read it.
template <int Dp, int R = Tiles<Dp>::R>
__device__ __forceinline__ void add_product(float (&c)[R][Dp / side], float* shared_p, const float (&p)[R][R], const float* right) {
  __syncwarp();  // all have read what was there before
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int j = 0; j < R; ++j) shared_p[(thread_y() + side * i) * Tiles<Dp>::p_stride + thread_x() + side * j] = p[i][j];
  __syncwarp();
#pragma unroll 2
  for (int k = 0; k < Tiles<Dp>::rows; ++k) {
    float a[R];
#pragma unroll
    for (int i = 0; i < R; ++i) a[i] = shared_p[(thread_y() + side * i) * Tiles<Dp>::p_stride + k];
#pragma unroll
    for (int j = 0; j < Dp / side; j += 4) {
      const float4 b = *reinterpret_cast<const float4*>(right + k * Tiles<Dp>::stride + 4 * thread_x() + side * j);
#pragma unroll
      for (int i = 0; i < R; ++i) {
        c[i][j] = fmaf(a[i], b.x, c[i][j]);
        c[i][j + 1] = fmaf(a[i], b.y, c[i][j + 1]);
        c[i][j + 2] = fmaf(a[i], b.z, c[i][j + 2]);
        c[i][j + 3] = fmaf(a[i], b.w, c[i][j + 3]);
      }
    }
  }
}

template <int Dp, int R = Tiles<Dp>::R>
__device__ __forceinline__ void store_rows(float* to, std::int64_t stride, const float (&c)[R][Dp / side], const float (&factor)[R],
                                           int valid, int D) {
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int j = 0; j < Dp / side; ++j) {
      const int row = thread_y() + side * i, d = 4 * thread_x() + j / 4 * 4 * side + j % 4;
      if (row < valid && d < D) to[row * stride + d] = c[i][j] * factor[i];
    }
}

// The largest value and the sum over the 16 threads of a row.
__device__ __forceinline__ float row_most(float x) {
  for (int bits = side / 2; bits > 0; bits /= 2) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, bits));
  return x;
}
__device__ __forceinline__ float row_sum(float x) {
  for (int bits = side / 2; bits > 0; bits /= 2) x += __shfl_xor_sync(all_lanes, x, bits);
  return x;
}

template <int Dp, class Seen>
__global__ void __launch_bounds__(threads, 1) forward(ForwardPass a, ScoreScale scale) {
  constexpr int R = Tiles<Dp>::R, rows = Tiles<Dp>::rows, size = rows * Tiles<Dp>::stride;
  float *q = dynamic_shared<float>(), *k = q + size, *v = k + size, *shared_p = v + size;
  const int end = static_cast<int>(a.queries), D = static_cast<int>(a.shape.D), Dv = static_cast<int>(a.shape.Dv);
  const int head = static_cast<int>(blockIdx.x), first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * rows;
  const Seen sight(a, blockIdx.z);
  const Heads<const float> heads = inputs_of<float>(a, blockIdx.z, head);
  load_rows<Dp>(q, heads.q + first * heads.q_stride, heads.q_stride, end - first, D);
  float out[R][Dp / side] = {}, most[R], total[R] = {};
  for (int i = 0; i < R; ++i) most[i] = -INFINITY;
  for (int key = sight.begin_of_query(first) / rows * rows; key < sight.of_query(first + rows - 1); key += rows) {
    __syncthreads();
    load_rows<Dp>(k, heads.k + key * heads.k_stride, heads.k_stride, sight.keys - key, D);
    load_rows<Dp>(v, heads.v + key * heads.v_stride, heads.v_stride, sight.keys - key, Dv);
    __syncthreads();
    float p[R][R];
    multiply_rows<Dp>(p, q, k);
#pragma unroll
    for (int i = 0; i < R; ++i) {
      float m = most[i];
      const int seen = sight.of_query(first + thread_y() + side * i), begin = sight.begin_of_query(first + thread_y() + side * i);
#pragma unroll
      for (int j = 0; j < R; ++j) {
        const int column = key + thread_x() + side * j;
        if (Seen::capped) p[i][j] = tanh_of_score(p[i][j] * scale.bend);
        p[i][j] = column >= seen ? -INFINITY : column < begin ? before_first : p[i][j] * (scale.of_softmax<Seen>() * log2_e);
        m = fmaxf(m, p[i][j]);
      }
      m = row_most(m);
      const float rescale = exp2f(most[i] - m);
      most[i] = m;
      total[i] *= rescale;
#pragma unroll
      for (int j = 0; j < R; ++j) total[i] += p[i][j] = exp2f(p[i][j] - m);
#pragma unroll
      for (int j = 0; j < Dp / side; ++j) out[i][j] *= rescale;
    }
    add_product<Dp>(out, shared_p, p, v);
  }
  float* lse = a.lse + (blockIdx.z * a.shape.H + head) * a.shape.T + first;
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const float sum = row_sum(total[i]);
    const int row = thread_y() + side * i;
    const bool sees_any = sight.sees_any(first + row);
    total[i] = sees_any ? 1 / sum : 0;
    if (thread_x() == 0 && first + row < end) lse[row] = sees_any ? most[i] * ln_2 + logf(sum) : -INFINITY;
  }
  float* to = static_cast<float*>(a.out) + (blockIdx.z * a.shape.T + first) * a.shape.H * Dv + head * Dv;
  store_rows<Dp>(to, a.shape.H * Dv, out, total, end - first, Dv);
}

// Owns a tile of keys; sums over the query heads of the group, and for each over query tiles from the diagonal on.
template <int Dp, class Seen>
__global__ void __launch_bounds__(threads, 1) backward_of_keys(BackwardPass a, RowTerms terms, ScoreScale scale) {
  constexpr int R = Tiles<Dp>::R, rows = Tiles<Dp>::rows, size = rows * Tiles<Dp>::stride;
  float *k = dynamic_shared<float>(), *v = k + size, *q = v + size, *d_out = q + size, *shared_p = d_out + size;
  const int end = static_cast<int>(a.queries), D = static_cast<int>(a.shape.D), Dv = static_cast<int>(a.shape.Dv);
  const int group = static_cast<int>(a.shape.H / a.shape.G);
  const int head = static_cast<int>(blockIdx.x) * group, first = static_cast<int>(blockIdx.y) * rows;
  const Seen sight(a, blockIdx.z);
  const Heads<const float> heads = inputs_of<float>(a, blockIdx.z, head);
  load_rows<Dp>(k, heads.k + first * heads.k_stride, heads.k_stride, sight.keys - first, D);
  load_rows<Dp>(v, heads.v + first * heads.v_stride, heads.v_stride, sight.keys - first, Dv);
  float d_k[R][Dp / side] = {}, d_v[R][Dp / side] = {};
  const int stop = sight.end_of_key(min(first + rows, sight.keys) - 1, end);
  for (int h = 0; h < group; ++h)
    for (int query = sight.first_of_key(first); query < stop; query += rows) {
      __syncthreads();
      load_rows<Dp>(q, heads.q + query * heads.q_stride + h * D, heads.q_stride, end - query, D);
      load_rows<Dp>(d_out, static_cast<const float*>(a.d_out) + ((blockIdx.z * a.shape.T + query) * a.shape.H + head + h) * Dv,
                    a.shape.H * Dv, end - query, Dv);
      __syncthreads();
      float p[R][R], d_p[R][R];
      multiply_rows<Dp>(p, k, q);
      multiply_rows<Dp>(d_p, v, d_out);
      const std::int64_t at = (blockIdx.z * a.shape.H + head + h) * terms.rows + query + thread_x();
#pragma unroll
      for (int j = 0; j < R; ++j) {
        const float lse = terms.lse_base2[at + side * j], delta = terms.delta[at + side * j];
        const int column = query + thread_x() + side * j, begin = sight.begin_of_query(column);
#pragma unroll
        for (int i = 0; i < R; ++i) {
          const int row = first + thread_y() + side * i;
          const bool unseen = column < sight.first_of_key(row) || row < begin;
          const float x = Seen::capped ? tanh_of_score(p[i][j] * scale.bend) : p[i][j];
          p[i][j] = unseen ? 0 : exp2f(x * (scale.of_softmax<Seen>() * log2_e) - lse);
          d_p[i][j] = p[i][j] * (d_p[i][j] - delta);
          if (Seen::capped) d_p[i][j] *= 1 - x * x;
        }
      }
      add_product<Dp>(d_v, shared_p, p, d_out);
      add_product<Dp>(d_k, shared_p, d_p, q);
    }
  const Heads<float> to = gradients_of<float>(a, blockIdx.z, head);
  float factor[R];
  for (int i = 0; i < R; ++i) factor[i] = scale.of_products;
  store_rows<Dp>(to.k + first * to.k_stride, to.k_stride, d_k, factor, sight.keys - first, D);
  for (int i = 0; i < R; ++i) factor[i] = 1;
  store_rows<Dp>(to.v + first * to.v_stride, to.v_stride, d_v, factor, sight.keys - first, Dv);
}

template <int Dp, class Seen>
__global__ void __launch_bounds__(threads, 1) backward_of_queries(BackwardPass a, RowTerms terms, ScoreScale scale) {
  constexpr int R = Tiles<Dp>::R, rows = Tiles<Dp>::rows, size = rows * Tiles<Dp>::stride;
  float *q = dynamic_shared<float>(), *d_out = q + size, *k = d_out + size, *v = k + size, *shared_p = v + size;
  const int end = static_cast<int>(a.queries), D = static_cast<int>(a.shape.D), Dv = static_cast<int>(a.shape.Dv);
  const int head = static_cast<int>(blockIdx.x), first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * rows;
  const Seen sight(a, blockIdx.z);
  const Heads<const float> heads = inputs_of<float>(a, blockIdx.z, head);
  load_rows<Dp>(q, heads.q + first * heads.q_stride, heads.q_stride, end - first, D);
  load_rows<Dp>(d_out, static_cast<const float*>(a.d_out) + ((blockIdx.z * a.shape.T + first) * a.shape.H + head) * Dv, a.shape.H * Dv,
                end - first, Dv);
  float d_q[R][Dp / side] = {}, lse[R], delta[R], factor[R];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const std::int64_t at = (blockIdx.z * a.shape.H + head) * terms.rows + first + thread_y() + side * i;
    lse[i] = terms.lse_base2[at];
    delta[i] = terms.delta[at];
    factor[i] = scale.of_products;
  }
  for (int key = sight.begin_of_query(first) / rows * rows; key < sight.of_query(first + rows - 1); key += rows) {
    __syncthreads();
    load_rows<Dp>(k, heads.k + key * heads.k_stride, heads.k_stride, sight.keys - key, D);
    load_rows<Dp>(v, heads.v + key * heads.v_stride, heads.v_stride, sight.keys - key, Dv);
    __syncthreads();
    float p[R][R], d_p[R][R];
    multiply_rows<Dp>(p, q, k);
    multiply_rows<Dp>(d_p, d_out, v);
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const int seen = sight.of_query(first + thread_y() + side * i), begin = sight.begin_of_query(first + thread_y() + side * i);
#pragma unroll
      for (int j = 0; j < R; ++j) {
        const int column = key + thread_x() + side * j;
        const bool unseen = column >= seen || column < begin;
        const float x = Seen::capped ? tanh_of_score(p[i][j] * scale.bend) : p[i][j];
        p[i][j] = unseen ? 0 : exp2f(x * (scale.of_softmax<Seen>() * log2_e) - lse[i]) * (d_p[i][j] - delta[i]);
        if (Seen::capped) p[i][j] *= 1 - x * x;
      }
    }
    add_product<Dp>(d_q, shared_p, p, k);
  }
  const Heads<float> to = gradients_of<float>(a, blockIdx.z, head);
  store_rows<Dp>(to.q + first * to.q_stride, to.q_stride, d_q, factor, end - first, D);
}

template <class F>
void with_head_dim(std::int64_t D, F f) {
  if (D <= 64)
    f(std::integral_constant<int, 64>());
  else if (D <= 128)
    f(std::integral_constant<int, 128>());
  else
    f(std::integral_constant<int, 256>());
}

dim3 grid_of(std::int64_t heads, std::int64_t rows, int rows_of_block, std::int64_t B) {
  return dim3(static_cast<unsigned>(heads), static_cast<unsigned>(ceil_div(rows, rows_of_block)), static_cast<unsigned>(B));
}

}  // namespace

void attention_forward_fp32(const Context& context, const ForwardPass& a) {
  with_head_dim(std::max(a.shape.D, a.shape.Dv), [&](auto head_dim) {
    constexpr int Dp = decltype(head_dim)::value;
    with_sight(a, [&](auto seen) {
      launch(stream_of(context), grid_of(a.shape.H, a.queries, Tiles<Dp>::rows, a.shape.B), threads, Tiles<Dp>::shared_bytes(3),
             forward<Dp, typename decltype(seen)::type>, a, ScoreScale(a.shape));
    });
  });
}

void attention_backward_fp32(const Context& context, const BackwardPass& a, const RowTerms& terms) {
  const ScoreScale scale(a.shape);
  with_head_dim(std::max(a.shape.D, a.shape.Dv), [&](auto head_dim) {
    constexpr int Dp = decltype(head_dim)::value;
    constexpr int rows = Tiles<Dp>::rows;
    constexpr std::size_t shared_bytes = Tiles<Dp>::shared_bytes(4);
    with_sight(a, [&](auto seen) {
      using Seen = typename decltype(seen)::type;
      launch(stream_of(context), grid_of(a.shape.G, a.keys, rows, a.shape.B), threads, shared_bytes, backward_of_keys<Dp, Seen>, a, terms,
             scale);
      launch(stream_of(context), grid_of(a.shape.H, a.queries, rows, a.shape.B), threads, shared_bytes, backward_of_queries<Dp, Seen>, a,
             terms, scale);
    });
  });
}

}  // namespace tessera::kernels::cuda
