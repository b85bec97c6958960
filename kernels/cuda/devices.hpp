// The GPUs of this machine, for code that knows no CUDA.
#pragma once

namespace tessera::cuda {

/// GPUs that this process may use; 0 where there is none, or no driver.
int device_count();
/// Waits for all work of this process' GPU.
void synchronize();

}  // namespace tessera::cuda
