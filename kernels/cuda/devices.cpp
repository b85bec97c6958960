#include "kernels/cuda/devices.hpp"

#include "kernels/cuda/runtime.hpp"

namespace tessera::cuda {

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string why_no_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    // The same error stands for a driver that is too old and for none; the versions tell them apart.
    int driver = 0, runtime = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return "there is no NVIDIA driver";
    cudaRuntimeGetVersion(&runtime);
    const auto version = [](int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); };
    return "the driver is of CUDA " + version(driver) + " and this program needs " + version(runtime);
  }
  if (status != cudaSuccess) return cudaGetErrorString(status);
  return count == 0 ? cudaGetErrorString(cudaErrorNoDevice) : "";
}

namespace {
struct MemoryInfo {
  std::size_t free = 0, total = 0;
  MemoryInfo() { TESSERA_CUDA_CHECK(cudaMemGetInfo(&free, &total)); }
};
}  // namespace

std::size_t free_memory() { return MemoryInfo().free; }

std::size_t used_memory() {
  const MemoryInfo info;
  return info.total - info.free;
}

void synchronize() { TESSERA_CUDA_CHECK(cudaDeviceSynchronize()); }

void synchronize(void* stream) { TESSERA_CUDA_CHECK(cudaStreamSynchronize(static_cast<cudaStream_t>(stream))); }

bool idle(void* stream) {
  const cudaError_t status = cudaStreamQuery(static_cast<cudaStream_t>(stream));
  if (status == cudaErrorNotReady) return cudaGetLastError(), false;  // or the next launch would report it
  TESSERA_CUDA_CHECK(status);
  return true;
}

DeviceName device_name(int device) {
  char bus[64] = {};
  TESSERA_CUDA_CHECK(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
  cudaDeviceProp properties{};
  TESSERA_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  std::string uuid = "GPU";
  for (int i = 0; i < 16; ++i) {
    constexpr const char* digits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(properties.uuid.bytes[i]);
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) uuid += '-';
    uuid += digits[byte / 16], uuid += digits[byte % 16];
  }
  return {uuid, bus};
}

std::string device_model() {
  int device = 0;
  cudaDeviceProp properties{};
  TESSERA_CUDA_CHECK(cudaGetDevice(&device));
  TESSERA_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  return std::string(properties.name) + " with " + std::to_string(properties.multiProcessorCount) + " multiprocessors";
}

namespace {

/// Of this thread's device: 90 is 9.0.
int compute_capability() {
  int device = 0, major = 0, minor = 0;
  TESSERA_CUDA_CHECK(cudaGetDevice(&device));
  TESSERA_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  TESSERA_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return 10 * major + minor;
}

}  // namespace

bool is_hopper() { return compute_capability() == 90; }
bool multiplies_fp8() { return compute_capability() >= 89; }

void use_device(int device) { TESSERA_CUDA_CHECK(cudaSetDevice(device)); }

}  // namespace tessera::cuda
