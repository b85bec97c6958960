// The GPUs of this machine, for code that knows no CUDA.
#pragma once
#include <string>

namespace tessera::cuda {

/// GPUs that this process may use; 0 where there is none, or no driver.
int device_count();
/// Why there is none, in CUDA's words; empty where there is one.
std::string why_no_device();
/// Returns when all work that this process gave its GPU is done. Throws Error(environment) when some of it failed.
void synchronize();

}  // namespace tessera::cuda
