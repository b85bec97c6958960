// Copies of tiles from global memory into panels, where the products of a warpgroup read them, by a block of two warpgroups.
#pragma once
#include "kernels/cuda/warpgroup.hpp"

namespace tessera::cuda {

inline constexpr int panel_threads = 2 * warpgroup_lanes;

/// What one of `threads` copies of tiles of Dp columns: one chunk of every few rows from row `first` on. Unsigned, so that divisions are
/// shifts and the places of a thread's chunks differ by constants.
template <int Dp, int threads = panel_threads>
struct Copies {
  static constexpr unsigned chunks = Dp / 8, stride_rows = threads / chunks;
  unsigned thread = static_cast<unsigned>(hidden(threadIdx.x)) % threads, chunk = thread % chunks, first = thread / chunks;
  /// Where it begins in rows `stride` apart.
  template <class T>
  __device__ __forceinline__ const T* source(const T* from, std::int64_t stride) const {
    return from + first * stride + 8 * chunk;
  }
};

/// Starts the copy of rows of D elements, `stride` apart, into panels of `count` rows, of which `threads` copy the first `copied`; rows
/// from `valid` on and elements from D on become zero. `source` is the thread's own, and is not read where no bytes are asked for.
template <int Dp, int count, bool wide, int copied = count, int threads = panel_threads, class T>
__device__ __forceinline__ void load_panels_from(T* tile, const T* source, std::int64_t stride, int valid, int D) {
  constexpr int stride_rows = Copies<Dp, threads>::stride_rows;
  static_assert(copied % stride_rows == 0);
  const Copies<Dp, threads> mine;
  const int left = D - static_cast<int>(8 * mine.chunk), first = static_cast<int>(mine.first);
  const int bytes = wide ? (left > 0 ? 16 : 0) : min(max(2 * left, 0), 16);  // all or none of 16 take one predicate
#pragma unroll
  for (int i = 0; i < copied; i += stride_rows) {
    copy_chunk<wide>(tile + panel_chunk_at<count>(mine.first + i, mine.chunk), source, first + i < valid ? bytes : 0);
    source += stride_rows * stride;
  }
}
template <int Dp, int count, bool wide, class T>
__device__ __forceinline__ void load_panels(T* tile, const T* from, std::int64_t stride, int valid, int D) {
  load_panels_from<Dp, count, wide>(tile, Copies<Dp>().source(from, stride), stride, valid, D);
}

/// The 16 columns from 16 i on of the 64 rows at a descriptor, in a tile of `count` rows: 32 bytes of a panel's rows.
template <int count>
__device__ __forceinline__ std::uint64_t columns_at(std::uint64_t descriptor, int i) {
  return further(descriptor, i / 4 * count * 128 + i % 4 * 32);
}

}  // namespace tessera::cuda
