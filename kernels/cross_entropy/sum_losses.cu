#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/cuda/reduce.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

constexpr int sum_threads = 1024;

/// One block: thread t sums the losses t, t + 1024, ... in fp64, and the threads' sums are added in a fixed order. Bound by latency.
__global__ void __launch_bounds__(sum_threads) sum_losses_kernel(double* sum, const float* losses, std::int64_t M) {
  double total = 0;
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < M; i += sum_threads) total += static_cast<double>(losses[i]);
  total = block_sum(total);
  if (threadIdx.x == 0) *sum = total;
}

}  // namespace

void sum_losses(const Context& context, const SumLosses& s) {
  launch(stream_of(context), 1, sum_threads, 0, sum_losses_kernel, s.sum, s.losses, s.M);
}

}  // namespace tessera::kernels::cuda
