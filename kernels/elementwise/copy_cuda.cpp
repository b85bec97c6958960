#include "kernels/cuda/runtime.hpp"
#include "kernels/elementwise/elementwise.hpp"

namespace tessera::kernels::cuda {

void copy(const Context& context, void* to, const void* from, std::size_t bytes) {
  TESSERA_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(context.stream)));
}

}  // namespace tessera::kernels::cuda
