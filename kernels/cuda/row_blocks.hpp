// Sums over the rows of RowBlocks on a GPU.
#pragma once
#include "kernels/cuda/vector.hpp"

namespace tessera::cuda {

/// Each thread of a block of block_threads has N sums, and so has the thread of the same lane in every group of `group` threads: adds them
/// in the order of the groups. write(lane, e, sum) is called once for each.
template <int N, class Write>
__device__ void sum_over_groups(const float (&of_thread)[N], int group, Write&& write) {
  __shared__ float of_group[block_threads * N];
#pragma unroll
  for (int e = 0; e < N; ++e) of_group[threadIdx.x * N + e] = of_thread[e];
  __syncthreads();
  const int in_group = group * N;
  for (int i = static_cast<int>(threadIdx.x); i < in_group; i += block_threads) {
    float sum = 0;
    for (int at = i; at < block_threads * N; at += in_group) sum += of_group[at];
    write(i / N, i % N, sum);
  }
}

/// sum[j] += partial (count,N) summed over its rows in a fixed order.
void add_partial_sums(cudaStream_t stream, float* sum, const float* partial, std::int64_t count, std::int64_t N);

}  // namespace tessera::cuda
