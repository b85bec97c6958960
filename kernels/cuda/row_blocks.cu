#include "kernels/cuda/row_blocks.hpp"

namespace tessera::cuda {
namespace {

constexpr int columns = 32, shares = 16;

/// A block has 32 columns. Thread (x, y) sums the rows y, y + 16, ... of column x, and the sixteen sums are added in the order of y.
/// Bound by the latency of loads from the second-level cache, where the partial sums have just been written. Not yet measured.
__global__ void __launch_bounds__(columns* shares)
    add_partial_sums_kernel(float* sum, const float* partial, std::int64_t count, std::int64_t N) {
  __shared__ float of_share[shares][columns];
  const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * columns + threadIdx.x;
  float total = 0;
  if (j < N) {
#pragma unroll 8
    for (std::int64_t b = threadIdx.y; b < count; b += shares) total += partial[b * N + j];
  }
  of_share[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || j >= N) return;
  for (int y = 1; y < shares; ++y) total += of_share[y][threadIdx.x];
  sum[j] += total;
}

}  // namespace

void add_partial_sums(cudaStream_t stream, float* sum, const float* partial, std::int64_t count, std::int64_t N) {
  launch(stream, static_cast<unsigned>(ceil_div(N, columns)), dim3(columns, shares), 0, add_partial_sums_kernel, sum, partial, count, N);
}

}  // namespace tessera::cuda
