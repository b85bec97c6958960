// What the attention kernels for Hopper share in bf16 and fp16: tiles of rows in panels, where the products of a warpgroup read them.
#pragma once
#include "kernels/attention/tensor_core_tiles.hpp"
#include "kernels/cuda/panels.hpp"

namespace tessera::kernels::cuda::warpgroup_tiles {

using namespace tensor_core_tiles;

/// Two warpgroups own 64 rows each of one kind (queries or keys); both walk tiles of the other kind, `step` rows in the backward pass, in a
/// ring of stages.
inline constexpr int warpgroups = 2, rows = warpgroups * 64, step = 64, stages = 3, block_threads = panel_threads;

/// Head dims are padded with zeros to `columns`: 64, 96 or 128. Scores are products over those; panels, and outputs, have whole 64s.
constexpr int padded_columns(int columns) { return (columns + panel_columns - 1) / panel_columns * panel_columns; }

/// Calls f with the compiled number of columns that D is padded to, as a type; of scores with a cap as with_head_dim() has it.
template <class Seen, class F>
void with_columns(std::int64_t D, F f) {
  if constexpr (!Seen::capped)
    if (D > 64 && D <= 96) return f(std::integral_constant<int, 96>());
  D <= 64 ? f(std::integral_constant<int, 64>()) : f(std::integral_constant<int, 128>());
}

/// A thread's copies of a head's keys and values, tile after tile from key `first` on: stages of K (step, Dp), V (step, Dp).
template <class T, int Dp, bool wide>
struct KeyCopies {
  const T* k;
  std::int64_t stride, to_values;
  __device__ __forceinline__ KeyCopies(const Heads<const T>& heads, int first)
      : k(Copies<Dp>().source(heads.k + first * heads.k_stride, heads.k_stride)), stride(heads.k_stride), to_values(heads.v - heads.k) {}
  __device__ __forceinline__ void load(T* stage, int valid, int D) {
    load_panels_from<Dp, step, wide>(stage, k, stride, valid, D);
    load_panels_from<Dp, step, wide>(stage + step * Dp, k + to_values, stride, valid, D);
    k += step * stride;
  }
};

/// A warpgroup's scores = left right^T over 16 `steps` columns are started, as one group of products. The left operand is in registers, the
/// right one a tile of 8 N rows;
template <int N, int steps, class T>
__device__ __forceinline__ void start_scores(float (&scores)[N][4], const std::uint32_t (&left)[steps][4], const T* right) {
  static_assert(N % 8 == 0);
  const std::uint64_t from = panel_descriptor(shared_address(right));
  fence_registers(scores);
  warpgroup_fence();
#pragma unroll
  for (int n = 0; n < N; n += 8)
#pragma unroll
    for (int i = 0; i < steps; ++i)
      start_product<T, false>(reinterpret_cast<float(&)[8][4]>(scores[n]), left[i],
                              tessera::cuda::further(columns_at<8 * N>(from, i), n * 8 * 128), i > 0);
  warpgroup_commit();
}

/// or it is in shared memory: 64 rows of a tile of `rows`.
template <int steps, class T>
__device__ __forceinline__ void start_scores(float (&scores)[8][4], const T* left, const T* right) {
  const std::uint64_t from_left = panel_descriptor(shared_address(left)), from = panel_descriptor(shared_address(right));
  fence_registers(scores);
  warpgroup_fence();
#pragma unroll
  for (int i = 0; i < steps; ++i) start_product<T, false>(scores, columns_at<rows>(from_left, i), columns_at<step>(from, i), i > 0);
  warpgroup_commit();
}

/// out += p times a tile of 16 `steps` rows is started, as one group. Output columns 64 n.. come from panel n.
template <int Dp, int steps, class T>
__device__ __forceinline__ void start_outputs(float (&out)[Dp / 64][8][4], std::uint32_t (&p)[steps][4], const T* right) {
  const std::uint64_t from = panel_descriptor(shared_address(right));
#pragma unroll
  for (int n = 0; n < Dp / 64; ++n) fence_registers(out[n]);
  fence_registers(p);
  warpgroup_fence();
#pragma unroll
  for (int n = 0; n < Dp / 64; ++n)
#pragma unroll
    for (int k = 0; k < steps; ++k)
      start_product<T, true>(out[n], p[k], tessera::cuda::further(from, n * steps * 16 * 128 + k * 16 * 128), true);
  warpgroup_commit();
}

/// Like store_rows, of a warp's 16 rows.
template <int Dp, class T>
__device__ __forceinline__ void store_panels(T* to, std::int64_t stride, const float (&c)[Dp / 64][8][4], const float (&factor)[1][2],
                                             int first, int end, int D) {
#pragma unroll
  for (int n = 0; n < Dp / 64; ++n)
    store_rows<64>(to + 64 * n, stride, reinterpret_cast<const float(&)[1][8][4]>(c[n]), factor, first, end, D - 64 * n);
}

}  // namespace tessera::kernels::cuda::warpgroup_tiles
