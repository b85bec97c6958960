#include "kernels/cuda/runtime.hpp"

#include "base/check.hpp"

namespace tessera::cuda {

void check(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  const ExitCode code = status == cudaErrorMemoryAllocation ? ExitCode::memory : ExitCode::environment;
  tessera::fail(code, "{}: {} ({}) at {}:{}", call, cudaGetErrorName(status), cudaGetErrorString(status), file, line);
}

void fail_require(const char* condition, const char* file, int line) { tessera::fail_require(condition, file, line, "in device code"); }

}  // namespace tessera::cuda
