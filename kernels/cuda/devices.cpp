#include "kernels/cuda/devices.hpp"

#include "kernels/cuda/runtime.hpp"

namespace tessera::cuda {

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string device_id(int device) {
  char id[64] = {};
  TESSERA_CUDA_CHECK(cudaDeviceGetPCIBusId(id, sizeof id, device));
  return id;
}

void use_device(int device) { TESSERA_CUDA_CHECK(cudaSetDevice(device)); }

}  // namespace tessera::cuda
