// The CUDA runtime's calls with our errors. Free of fmt, so that files for nvcc may include it.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>

namespace tessera::cuda {

/// Throws Error(environment) with the call, CUDA's name and text for the error, and where it happened.
void check(cudaError_t status, const char* call, const char* file, int line);
/// Throws Error(internal): a broken invariant of device code.
[[noreturn]] void fail_require(const char* condition, const char* file, int line);

}  // namespace tessera::cuda

#define TESSERA_CUDA_CHECK(call) ::tessera::cuda::check((call), #call, __FILE__, __LINE__)
#define TESSERA_CUDA_REQUIRE(condition)                                              \
  do {                                                                               \
    if (!(condition)) ::tessera::cuda::fail_require(#condition, __FILE__, __LINE__); \
  } while (false)
