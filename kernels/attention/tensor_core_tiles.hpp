// What the attention kernels for GPUs share in bf16 and fp16: tiles of rows in shared memory, and the two kinds of product that attention
// is made of, on the tensor cores by mma.sync. A block is four warps; each warp owns 16 M consecutive rows of the block's tile.
//
// Head dims are padded with zeros to the next of 32, 64, 96, 128, 192 and 256 inside a block, so those lose nothing. Head dims that are no
// multiple of 8 are copied in pieces of 4 bytes and not 16.
#pragma once
#include <bit>
#include <type_traits>

#include "base/backend.hpp"
#include "kernels/attention/attention_kernels.hpp"
#include "kernels/cuda/tensor_core.hpp"

namespace tessera::kernels::cuda::tensor_core_tiles {

using namespace tessera::cuda;

inline constexpr int warps = 4, threads = warps * warp_lanes;

/// Compiled widths: what D and Dv are padded to with zeros. `same`: of passes that are uniform (AttentionInput::is_uniform), whose code
/// reads D and the keys' stride for values as well.
template <int keys, int values, bool uniform>
struct HeadDims {
  static constexpr int Dp = keys, Dvp = values;
  static constexpr bool same = uniform;
  static __device__ __forceinline__ int Dv(const AttentionShape& s) { return static_cast<int>(same ? s.D : s.Dv); }
};

/// Calls f with compiled widths, as a type. A kernel takes long to compile, so that what few models have is padded further: of scores with
/// a cap only powers of two, and of widths that differ 192 with 128 (MLA of DeepSeek-V3) and 256.
template <class Seen, class F>
void with_head_dims(const AttentionShape& s, bool uniform, F f) {
  const std::int64_t D = s.D;
  if (!uniform) {
    if constexpr (!Seen::capped)
      if (D <= 192 && s.Dv <= 128) return f(HeadDims<192, 128, false>());
    f(HeadDims<256, 256, false>());
  } else if constexpr (Seen::capped) {
    if (D <= 64)
      f(HeadDims<64, 64, true>());
    else if (D <= 128)
      f(HeadDims<128, 128, true>());
    else
      f(HeadDims<256, 256, true>());
  } else if (D <= 32)
    f(HeadDims<32, 32, true>());
  else if (D <= 64)
    f(HeadDims<64, 64, true>());
  else if (D <= 96)
    f(HeadDims<96, 96, true>());
  else if (D <= 128)
    f(HeadDims<128, 128, true>());
  else if (D <= 192)
    f(HeadDims<192, 192, true>());
  else
    f(HeadDims<256, 256, true>());
}

/// Whether rows from p on, some of `width` elements, can be copied 16 bytes at a time.
inline bool copies_16_bytes(const void* p, std::int64_t width, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 && width % 8 == 0 && stride % 8 == 0;
}
inline bool copies_16_bytes(const AttentionInput& a) {
  const auto wide = [](const HeadRows<const void>& rows, std::int64_t width) { return copies_16_bytes(rows.data, width, rows.stride); };
  return wide(a.rows.q, a.shape.D) && wide(a.rows.k, a.shape.D) && wide(a.rows.v, a.shape.Dv);
}
inline bool copies_16_bytes(const BackwardPass& a) {
  return copies_16_bytes(static_cast<const AttentionInput&>(a)) && copies_16_bytes(a.d_out, a.shape.Dv, a.shape.Dv);
}

/// Calls f with std::true_type or std::false_type. Compiled for one width each: with both behind a flag, the copies that are not taken cost
/// more instructions than those that are.
template <class F>
void with_wide(bool wide, F f) {
  wide ? f(std::true_type()) : f(std::false_type());
}

/// Where 16-byte chunk `chunk` of a row of a tile (rows, Dp) lies, in elements. Chunks are permuted within groups of 8 (or 4) so that the
/// same chunk of 8 consecutive rows lies in 8 different groups of banks: what load_matrices reads at once.
template <int Dp>
__device__ __forceinline__ int chunk_at(int row, int chunk) {
  static_assert(Dp % 32 == 0);
  const int swizzle = Dp % 64 == 0 ? row & 7 : row >> 1 & 3;
  return row * Dp + (chunk ^ swizzle) * 8;
}

/// Starts the copy of `rows` rows of D elements, `stride` apart, into a tile; rows from `valid` on and elements from D on become zero. A
/// thread copies one chunk of every few rows.
template <int Dp, int rows, bool wide, class T>
__device__ __forceinline__ void load_rows(T* tile, const T* from, std::int64_t stride, int valid, int D) {
  constexpr int chunks = Dp / 8, places = static_cast<int>(std::bit_ceil(unsigned{chunks})), step = threads / places;
  static_assert(rows % step == 0);
  const int thread = hidden(threadIdx.x), chunk = thread % places, first = thread / places;
  if (chunk >= chunks) return;
  const int bytes = min(max(2 * (D - 8 * chunk), 0), 16);
  const T* source = from + first * stride + 8 * chunk;  // not read where no bytes are asked for
#pragma unroll
  for (int i = 0; i < rows; i += step) {
    copy_chunk<wide>(tile + chunk_at<Dp>(first + i, chunk), source, first + i < valid ? bytes : 0);
    source += step * stride;
  }
}

template <int M, int N>
__device__ __forceinline__ void set_zero(float (&c)[M][N][4]) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][n][i] = 0;
}

/// c (16 M rows of `left` from `row` on, the first 8 N rows of `right`) = left right^T, over all Dp columns.
template <int Dp, int M, int N, class T>
__device__ __forceinline__ void multiply_rows(float (&c)[M][N][4], const T* left, int row, const T* right) {
  const int lane = hidden(threadIdx.x) % warp_lanes;
  set_zero(c);
#pragma unroll(Dp > 64 ? 4 : 2)
  for (int k = 0; k < Dp / 16; ++k) {
    std::uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) load_matrices(a[m], left + chunk_at<Dp>(row + 16 * m + lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      std::uint32_t b[4];
      load_matrices(b, right + chunk_at<Dp>(8 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
      for (int m = 0; m < M; ++m) {
        multiply_add<T>(c[m][n], a[m], b[0], b[1]);
        multiply_add<T>(c[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// c (16 M, Dp) += p (16 M, 8 N), rounded to T, times the first 8 N rows of `right`. p is a result of multiply_rows: as fragments, a
/// pair of its 16 x 8 results is a left operand.
template <int Dp, int M, int N, class T>
__device__ __forceinline__ void add_product(float (&c)[M][Dp / 8][4], const float (&p)[M][N][4], const T* right) {
  const int lane = hidden(threadIdx.x) % warp_lanes;
#pragma unroll
  for (int k = 0; k < N / 2; ++k) {
    std::uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) a[m][i] = pack<T>(p[m][2 * k + i / 2][i % 2 * 2], p[m][2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int n = 0; n < Dp / 8; n += 2) {
      std::uint32_t b[4];
      load_matrices_transposed(b, right + chunk_at<Dp>(16 * k + lane % 16, n + lane / 16));
#pragma unroll
      for (int m = 0; m < M; ++m) {
        multiply_add<T>(c[m][n], a[m], b[0], b[1]);
        multiply_add<T>(c[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// p, rounded to T, as left operands of products over its 8 N columns.
template <class T, int N>
__device__ __forceinline__ void pack_left(std::uint32_t (&a)[N / 2][4], const float (&p)[N][4]) {
#pragma unroll
  for (int k = 0; k < N / 2; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) a[k][i] = pack<T>(p[2 * k + i / 2][i % 2 * 2], p[2 * k + i / 2][i % 2 * 2 + 1]);
}

#ifdef TESSERA_EMULATED_GPU
inline float reciprocal_approximate(float x) { return emulator::approximate(1 / static_cast<double>(x), x, 1); }
#else
/// 1 / x within an ulp; 0 where x is infinite.
__device__ __forceinline__ float reciprocal_approximate(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

/// Scores become tanh(by scores), within 4e-7: times a cap of 50 still far less than what probabilities lose as bf16 or fp16. The tanh of
/// the hardware is within 5e-4: that times 50 would be seen.
template <int N>
__device__ __forceinline__ void bend(float (&scores)[N][4], float by) {
  const float by_base2 = by * (2 * log2_e);
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] = fmaf(-2, reciprocal_approximate(1 + exp2_approximate(scores[n][i] * by_base2)), 1);
}
template <int M, int N>
__device__ __forceinline__ void bend(float (&scores)[M][N][4], float by) {
#pragma unroll
  for (int m = 0; m < M; ++m) bend(scores[m], by);
}

/// Scores of keys that the query does not see become -infinity, or before_first. `row` and `key` are the first of the warp's tile.
template <int M, int N, class Seen>
__device__ __forceinline__ void mask_unseen_keys(float (&scores)[M][N][4], int row, int key, const Seen& sight) {
  const int lane = hidden(threadIdx.x) % warp_lanes;  // few tiles come here: nothing is kept for them over the others
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const int seen[2] = {sight.of_query(row + 16 * m + lane / 4), sight.of_query(row + 16 * m + lane / 4 + 8)};
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (key + 8 * n + lane % 4 * 2 + i % 2 >= seen[i / 2]) scores[m][n][i] = -INFINITY;
    if constexpr (Seen::bounded) {
      const int begin[2] = {sight.begin_of_query(row + 16 * m + lane / 4), sight.begin_of_query(row + 16 * m + lane / 4 + 8)};
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (key + 8 * n + lane % 4 * 2 + i % 2 < begin[i / 2]) scores[m][n][i] = before_first;
    }
  }
}

/// Scores become probabilities relative to the running maximum `most` (of raw scores); `total` (this lane's columns alone) follows it, and
/// the output is to be multiplied by `rescale`. Four lanes share a row.
template <int M, int N>
__device__ __forceinline__ void online_softmax(float (&scores)[M][N][4], float (&most)[M][2], float (&total)[M][2], float (&rescale)[M][2],
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
      const float shift = row_most * scale_base2;
      rescale[m][half] = exp2_approximate((most[m][half] - row_most) * scale_base2);
      most[m][half] = row_most;
      total[m][half] *= rescale[m][half];
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[m][n][i] = exp2_approximate(fmaf(scores[m][n][i], scale_base2, -shift));
          total[m][half] += scores[m][n][i];
        }
    }
}

/// inverse = 1 / total over the row's four lanes, and the log-sum-exp of rows row.. of a head that are below `end`; 0 and -infinity of one
/// that sees no key.
template <int M, class Seen>
__device__ __forceinline__ void finish_softmax(float (&inverse)[M][2], float* lse, const float (&most)[M][2], const float (&total)[M][2],
                                               int row, int end, float scale, const Seen& sight) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = total[m][half];
      sum += __shfl_xor_sync(all_lanes, sum, 1);
      sum += __shfl_xor_sync(all_lanes, sum, 2);
      const int query = row + 16 * m + 8 * half + lane_index() / 4;
      const bool sees_any = sight.sees_any(query);
      inverse[m][half] = sees_any ? 1 / sum : 0;
      if (query < end && lane_index() % 4 == 0) lse[query] = sees_any ? most[m][half] * scale + logf(sum) : -INFINITY;
    }
}

/// Rows are keys, columns queries: what stands for a key that its query does not see becomes `unseen`.
template <int M, int N, class Seen>
__device__ __forceinline__ void mask_unseen_queries(float (&scores)[M][N][4], int key, int query, const Seen& sight, float unseen) {
  const int lane = lane_index();
  const bool diagonal = query < sight.first_of_key(key + 16 * M - 1);
  const bool begins = sight.begin_of_query(query + 8 * N - 1) > key;  // the sight of one of these queries, behind this key
  if (Seen::bounded && begins) {
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int begin = sight.begin_of_query(query + 8 * n + lane % 4 * 2 + i);
#pragma unroll
        for (int m = 0; m < 2 * M; ++m)
          if (key + 8 * m + lane / 4 < begin) scores[m / 2][n][m % 2 * 2 + i] = unseen;
      }
  }
  if (!diagonal) return;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (key + 16 * m + lane / 4 + i / 2 * 8 > query + 8 * n + lane % 4 * 2 + i % 2) scores[m][n][i] = unseen;
}

/// Rows are keys, columns queries: scores become probabilities, by the queries' lse in shared memory.
template <int M, int N, class Seen>
__device__ __forceinline__ void probabilities(float (&scores)[M][N][4], const float* lse, int key, int query, const Seen& sight,
                                              float scale_base2) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const int column = 8 * n + lane_index() % 4 * 2;
    const float shift[2] = {lse[column], lse[column + 1]};
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[m][n][i] = exp2_approximate(fmaf(scores[m][n][i], scale_base2, -shift[i % 2]));
  }
  mask_unseen_queries(scores, key, query, sight, 0);
}

/// p (d_p - delta), delta by column.
template <int M, int N>
__device__ __forceinline__ void times_difference(float (&p)[M][N][4], const float (&d_p)[M][N][4], const float* delta) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const int column = 8 * n + lane_index() % 4 * 2;
    const float subtract[2] = {delta[column], delta[column + 1]};
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) p[m][n][i] *= d_p[m][n][i] - subtract[i % 2];
  }
}

/// With a cap, x the tanh of scores and unseen_tanh where they are not seen: x becomes p, by lse, and d_p becomes p (d_p - delta) (1 -
/// x^2); lse and delta by column.
template <int M, int N>
__device__ __forceinline__ void capped_gradients(float (&x)[M][N][4], float (&d_p)[M][N][4], const float* lse, const float* delta,
                                                 float cap_base2) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const int column = 8 * n + lane_index() % 4 * 2;
    const float shift[2] = {lse[column], lse[column + 1]}, subtract[2] = {delta[column], delta[column + 1]};
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float p = exp2_approximate(fmaf(x[m][n][i], cap_base2, -shift[i % 2]));
        d_p[m][n][i] = p * fmaf(-x[m][n][i], x[m][n][i], 1) * (d_p[m][n][i] - subtract[i % 2]);
        x[m][n][i] = p;
      }
  }
}

/// c *= factor, by row.
template <int M, int N>
__device__ __forceinline__ void scale_rows(float (&c)[M][N][4], const float (&factor)[M][2]) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][n][i] *= factor[m][i / 2];
}

/// Rows first.. of `to` (rows of D elements, `stride` apart) = c * factor[m][half], where the row is below `rows`.
template <int Dp, int M, class T>
__device__ __forceinline__ void store_rows(T* to, std::int64_t stride, const float (&c)[M][Dp / 8][4], const float (&factor)[M][2],
                                           int first, int rows, int D) {
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + 16 * m + 8 * half + lane / 4;
      if (row >= rows) continue;
      T* out = to + row * stride + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < Dp / 8; ++n)
        if (8 * n + lane % 4 * 2 < D)
          *reinterpret_cast<std::uint32_t*>(out + 8 * n) =
              pack<T>(c[m][n][2 * half] * factor[m][half], c[m][n][2 * half + 1] * factor[m][half]);
    }
}

}  // namespace tessera::kernels::cuda::tensor_core_tiles
