#include "kernels/gemm/gemm_sizes.hpp"

namespace tessera::kernels::cuda {

std::size_t gemm_workspace_bytes(const Gemm&) { return cublaslt_workspace; }
std::size_t gemm_packed_bytes(const Gemm&) { return 0; }

}  // namespace tessera::kernels::cuda
