// One block: a vocabulary's logits are some hundred kilobytes, which the product before has left in the second-level cache, and one
// multiprocessor reads them from there in less time than a second launch with its exchange through memory would be worth. A thread has
// every 1024th number and asks for eight before it compares any. Not yet measured.
#include "kernels/argmax/argmax.hpp"
#include "kernels/cuda/device.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

constexpr int threads = 1024, warps = threads / warp_lanes, unroll = 8;

/// NaN is held as infinity at -1: nothing is larger, and no equal comes before it.
struct Best {
  float value;
  int index;
  /// The larger; of equals the first, so that the order of comparisons does not matter.
  __device__ void take(const Best& other) {
    if (other.value > value || (other.value == value && other.index < index)) *this = other;
  }
  /// Over the lanes of a warp.
  __device__ void take_lanes() {
    for (int bits = warp_lanes / 2; bits > 0; bits /= 2)
      take({__shfl_xor_sync(all_lanes, value, bits), __shfl_xor_sync(all_lanes, index, bits)});
  }
};

__global__ void __launch_bounds__(threads) argmax_kernel(Argmax p) {
  __shared__ Best of_warp[warps];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % warp_lanes, warp = thread / warp_lanes;
  const int n = static_cast<int>(p.n);
  Best best{-INFINITY, -1};
  for (int first = 0; first < n; first += threads * unroll) {
    float x[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      const int i = first + u * threads + thread;
      x[u] = i < n ? p.x[i] : -INFINITY;
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u)
      if (!(x[u] <= best.value)) best = x[u] == x[u] ? Best{x[u], first + u * threads + thread} : Best{INFINITY, -1};
  }
  best.take_lanes();
  if (lane == 0) of_warp[warp] = best;
  __syncthreads();
  if (warp > 0) return;
  best = of_warp[lane];
  best.take_lanes();
  if (lane == 0) *p.index = best.index;
}

}  // namespace

void argmax(const Context& context, const Argmax& p) {
  TESSERA_CUDA_REQUIRE(p.n > 0 && p.n <= 1 << 30);
  launch(stream_of(context), 1, threads, 0, argmax_kernel, p);
}

}  // namespace tessera::kernels::cuda
