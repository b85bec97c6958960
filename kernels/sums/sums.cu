// Bound by memory: an element is read once, 2, 4 or 8 bytes. A block of 256 elements is summed by a warp in the host's order, so the sums
// and the limbs have the host's bits; limbs are added by integer atomics, whose order does not matter. Not yet measured.
#include "kernels/sums/sums.hpp"

#include "kernels/cuda/reduce.hpp"
#include "kernels/cuda/vector.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

constexpr int sums_of_warp = 8, warps = block_threads / warp_lanes;

__device__ double value_of(float x) { return static_cast<double>(x); }
__device__ double value_of(bf16 x) { return static_cast<double>(to_float(x)); }
__device__ double value_of(std::int64_t x) { return static_cast<double>(x) * 0x1p-44; }

/// Element i of a block goes to chain i % 32, which is lane i % 32; each chain runs in order, and the chains are joined by halves. All
/// lanes get the sum.
template <class T>
__device__ double block_of_256(const T* x) {
  const unsigned lane = threadIdx.x % warp_lanes;
  T value[sum_block / warp_lanes];
#pragma unroll
  for (int i = 0; i < sum_block / warp_lanes; ++i) value[i] = x[i * warp_lanes + lane];
  double sum = 0;
#pragma unroll
  for (const T v : value) sum = fma(value_of(v), value_of(v), sum);
  return warp_sum(sum);
}

template <class T>
__global__ void __launch_bounds__(block_threads)
    sum_of_squares_kernel(FixedSum* sum, std::int32_t* not_finite, const T* x, std::int64_t blocks, const float* scale) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / warp_lanes) * sums_of_warp;
  double mine = 0;  // lane k keeps the sum of block first + k
#pragma unroll 2
  for (int k = 0; k < sums_of_warp && first + k < blocks; ++k) {
    const double square = block_of_256(x + (first + k) * sum_block);
    if (lane == k) mine = square;
  }
  const double unscaled = scale ? 1 / (static_cast<double>(*scale) * static_cast<double>(*scale)) : 1;
  FixedSum local;
  if (!local.add(mine * unscaled)) *not_finite = 1;  // all write the same value
  static_assert(sizeof(unsigned long long) == sizeof(std::int64_t));
  __shared__ std::int64_t of_warp[warps][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::int64_t limb = warp_sum(local.limb[i], sums_of_warp);
    if (lane == 0) of_warp[threadIdx.x / warp_lanes][i] = limb;
  }
  __syncthreads();
  if (threadIdx.x >= 4) return;
  std::int64_t limb = 0;
  for (int w = 0; w < warps; ++w) limb += of_warp[w][threadIdx.x];
  atomicAdd(reinterpret_cast<unsigned long long*>(&sum->limb[threadIdx.x]), static_cast<unsigned long long>(limb));
}

template <class T>
void run(const Context& context, const SumOfSquares& p) {
  const std::int64_t blocks = p.n / sum_block;
  launch(stream_of(context), static_cast<unsigned>(ceil_div(blocks, std::int64_t{warps} * sums_of_warp)), block_threads, 0,
         sum_of_squares_kernel<T>, p.sum, p.not_finite, static_cast<const T*>(p.x), blocks, p.scale);
}

}  // namespace

void sum_of_squares(const Context& context, const SumOfSquares& p) {
  TESSERA_CUDA_REQUIRE(p.n % sum_block == 0);
  if (p.n == 0) return;
  with_sum_type(p.dtype, [&](auto type) { run<decltype(type)>(context, p); });
}

}  // namespace tessera::kernels::cuda
