#include "kernels/cuda/devices.hpp"

#include "kernels/cuda/runtime.hpp"

namespace tessera::cuda {

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

void synchronize() { TESSERA_CUDA_CHECK(cudaDeviceSynchronize()); }

}  // namespace tessera::cuda
