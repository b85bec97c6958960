// Whether the device of this process still works. Where a kernel has ended in a fault, no later call of the process gets past it.
#pragma once
#include <string>

#include "kernels/cuda/runtime.hpp"

namespace tessera {

/// CUDA's name of the error that every further call of this process returns; empty where there is none, or no GPU. Waits for the device.
inline std::string device_fault() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return "";
  cudaGetLastError();  // what is no fault of the device is forgotten by that
  if (cudaDeviceSynchronize() == cudaSuccess) return "";
  cudaGetLastError();
  const cudaError_t status = cudaDeviceSynchronize();
  return status == cudaSuccess ? "" : cudaGetErrorName(status);
}

}  // namespace tessera
