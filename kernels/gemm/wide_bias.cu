// Bound by memory. It is called for logits of experts alone, a few bytes of each token: a thread has one of them.
#include "kernels/cuda/vector.hpp"
#include "kernels/gemm/wide_bias.hpp"

namespace tessera::kernels::cuda {
namespace {

using namespace tessera::cuda;

template <class T>
__global__ void __launch_bounds__(block_threads)
    wide_bias_kernel(float* c, const T* bias, std::int64_t n, std::int64_t N, std::int64_t step) {
  const std::int64_t i = std::int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i < n) c[i / N * step + i % N] += to_float(bias[i % N]);
}

}  // namespace

void add_wide_bias(const Context& context, const Gemm& g) {
  const std::int64_t n = g.M * g.N, blocks = ceil_div(n, std::int64_t{block_threads});
  TESSERA_CUDA_REQUIRE(blocks < std::int64_t{1} << 31);
  with_float_type(g.in, [&](auto type) {
    using T = decltype(type);
    launch(stream_of(context), static_cast<unsigned>(blocks), block_threads, 0, wide_bias_kernel<T>, static_cast<float*>(g.c),
           static_cast<const T*>(g.bias), n, g.N, g.c_step());
  });
}

}  // namespace tessera::kernels::cuda
