// The three calls of the CUDA driver that Kokkos makes, found through the CUDA runtime at the first call. Linked in place of libcuda.so.1,
// so that the program also starts where no driver is installed: users plan on login nodes.
#include <cuda.h>
#include <cuda_runtime_api.h>

namespace {

/// A function of the driver, or null where there is no driver. The runtime loads the driver by itself when it is first used.
template <class Function>
Function* driver_function(const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found) != cudaSuccess) return nullptr;
  return found == cudaDriverEntryPointSuccess ? reinterpret_cast<Function*>(address) : nullptr;
}

}  // namespace

extern "C" {

CUresult cuCtxGetDevice(CUdevice* device) {
  static const auto call = driver_function<CUresult(CUdevice*)>("cuCtxGetDevice");
  return call ? call(device) : CUDA_ERROR_NOT_INITIALIZED;
}

// cuda.h names the second version of this call by a macro; the query takes the name without it.
CUresult cuCtxPushCurrent(CUcontext context) {
  static const auto call = driver_function<CUresult(CUcontext)>("cuCtxPushCurrent");
  return call ? call(context) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  static const auto call = driver_function<CUresult(CUstream, CUcontext*)>("cuStreamGetCtx");
  return call ? call(stream, context) : CUDA_ERROR_NOT_INITIALIZED;
}

}  // extern "C"
