#include "kernels/gemm/gemm_sizes.hpp"

#include "kernels/gemm/packed_codes.hpp"

namespace tessera::kernels::cuda {

std::size_t gemm_workspace_bytes(const Gemm&) { return cublaslt_workspace; }
std::size_t gemm_packed_bytes(const Gemm& g) { return g.fp8 ? packed_codes_bytes(g) : 0; }

}  // namespace tessera::kernels::cuda
