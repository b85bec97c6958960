// The GPUs of this machine, for code that knows no CUDA.
#pragma once

namespace tessera::cuda {

/// GPUs that this process may use; 0 where there is none, or no driver.
int device_count();

}  // namespace tessera::cuda
