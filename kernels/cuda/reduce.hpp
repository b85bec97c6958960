// Sums and maxima over warps and blocks, in an order that depends on nothing but the number of threads.
#pragma once
#include "kernels/cuda/device.hpp"

namespace tessera::cuda {

/// Over groups of `width` lanes (a power of two); every lane gets the result. Butterflies add the same two halves in every lane, so all
/// lanes have the same bits.
template <class T>
__device__ T warp_sum(T x, int width = warp_lanes) {
  for (int bits = width / 2; bits > 0; bits /= 2) x += __shfl_xor_sync(all_lanes, x, bits);
  return x;
}
template <class T>
__device__ T warp_max(T x, int width = warp_lanes) {
  for (int bits = width / 2; bits > 0; bits /= 2) {
    const T other = __shfl_xor_sync(all_lanes, x, bits);
    x = x < other ? other : x;
  }
  return x;
}

/// Over groups of `size` neighbouring threads of a one-dimensional block: a power of two up to 32, or whole warps. Every thread of the
/// block calls it and gets its group's result.
template <class T>
__device__ T group_sum(T x, int size) {
  if (size <= warp_lanes) return warp_sum(x, size);
  __shared__ T of_warp[32];
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes, warp = static_cast<int>(threadIdx.x) / warp_lanes;
  const int warps = size / warp_lanes, first = warp / warps * warps;
  x = warp_sum(x);
  __syncthreads();  // an earlier call's results have been read
  if (lane == 0) of_warp[warp] = x;
  __syncthreads();
  return warp_sum(lane < warps ? of_warp[first + lane] : T{});
}

/// Over all threads of a one-dimensional block of whole warps.
template <class T>
__device__ T block_sum(T x) {
  return group_sum(x, static_cast<int>(blockDim.x));
}
template <class T>
__device__ T block_max(T x) {
  __shared__ T of_warp[32];
  const unsigned lane = threadIdx.x % warp_lanes, warps = blockDim.x / warp_lanes;
  x = warp_max(x);
  __syncthreads();
  if (lane == 0) of_warp[threadIdx.x / warp_lanes] = x;
  __syncthreads();
  return warp_max(of_warp[lane < warps ? lane : 0]);
}

}  // namespace tessera::cuda
