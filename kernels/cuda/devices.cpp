#include "kernels/cuda/devices.hpp"

#include <cuda_runtime.h>

namespace tessera::cuda {

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

}  // namespace tessera::cuda
