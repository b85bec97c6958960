#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "kernels/libraries/libraries.hpp"

namespace tessera::kernels {

std::string cuda_libraries() {
  int runtime = 0;
  if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = 0;
  return fmt::format("CUDA {}.{}, cuBLASLt {}", runtime / 1000, runtime % 1000 / 10, cublasLtGetVersion());
}

}  // namespace tessera::kernels
