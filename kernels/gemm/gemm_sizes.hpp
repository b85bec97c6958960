// What products on a GPU may take.
#pragma once
#include "kernels/gemm/gemm.hpp"

namespace tessera::kernels::cuda {

/// What NVIDIA recommends for Hopper; a constant, so that plans need no device. Algorithms that want more are not taken.
inline constexpr std::size_t cublaslt_workspace = std::size_t{32} << 20;

}  // namespace tessera::kernels::cuda
