// A block has a history. From its end it moves on, as many numbers at a time as it has threads. Bound by launches: a few thousand numbers a
// layer.
#include "kernels/cuda/reduce.hpp"
#include "kernels/fp8_history/fp8_history_code.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

constexpr int history_threads = 256;

__global__ void __launch_bounds__(history_threads) histories_kernel(Fp8Histories p) {
  const std::int64_t i = blockIdx.x;
  float* row = p.history + i * p.length;
  float most = 0;
  const std::int64_t turns = (p.length + history_threads - 1) / history_threads;
  for (std::int64_t turn = turns - 1; turn >= 0; --turn) {
    const std::int64_t at = turn * history_threads + threadIdx.x;
    float x = 0;
    if (at < p.length) x = !p.enters ? row[at] : at == 0 ? p.largest[i] : row[at - 1];
    __syncthreads();  // all have read what others overwrite
    if (at < p.length && p.enters) row[at] = x;
    most = fmaxf(most, x);
  }
  most = block_max(most);
  if (threadIdx.x == 0) p.multipliers[i] = fp8_history::multiplier_of(p, i, most), p.largest[i] = 0;
}

}  // namespace

void fp8_histories(const Context& context, const Fp8Histories& p) {
  TESSERA_CUDA_REQUIRE(p.length > 0);
  if (p.matrices > 0) launch(stream_of(context), static_cast<unsigned>(fp8_tensors * p.matrices), history_threads, 0, histories_kernel, p);
}

}  // namespace tessera::kernels::cuda
