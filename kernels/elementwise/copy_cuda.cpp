#include "kernels/cuda/runtime.hpp"
#include "kernels/elementwise/elementwise.hpp"

namespace tessera::kernels::cuda {

void copy(const Context& context, void* to, const void* from, std::size_t bytes) {
  TESSERA_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(context.stream)));
}

void copy_rows(const Context& context, const CopyRows& p) {
  if (p.bytes == 0 || p.rows == 0) return;
  auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  TESSERA_CUDA_CHECK(cudaMemcpy2DAsync(p.to, size(p.to_stride), p.from, size(p.from_stride), size(p.bytes), size(p.rows), cudaMemcpyDefault,
                                       static_cast<cudaStream_t>(context.stream)));
}

}  // namespace tessera::kernels::cuda
