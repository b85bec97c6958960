#include "kernels/cuda/devices.hpp"

#include <sstream>

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

/// Of this thread's device.
int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  TESSERA_CUDA_CHECK(cudaGetDevice(&device));
  TESSERA_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

/// 90 is 9.0.
int compute_capability() { return 10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor); }

}  // namespace

std::string describe_translation() {
  const int own = compute_capability();
  std::istringstream architectures(TESSERA_CUDA_ARCHITECTURES);  // "80 90a-real"
  for (std::string one; architectures >> one;) {
    std::size_t digits = 0;
    const int compiled = std::stoi(one, &digits);
    const bool has_code = !one.ends_with("-virtual"), exact = one.substr(digits).starts_with("a");
    if (has_code && (exact ? own == compiled : own / 10 == compiled / 10 && own >= compiled)) return "";
  }
  return "this program has no machine code for compute capability " + std::to_string(own / 10) + "." + std::to_string(own % 10) +
         ", only for " TESSERA_CUDA_ARCHITECTURES
         ". The driver translates its kernels at the first start, which takes minutes, and keeps them in " +
         "~/.nv/ComputeCache. If ranks time out meanwhile, start one rank first, or build with -DCMAKE_CUDA_ARCHITECTURES=" +
         std::to_string(own) + "-real";
}

bool is_hopper() { return compute_capability() == 90; }
bool multiplies_fp8() { return compute_capability() >= 89; }
std::size_t shared_memory_limit() { return static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)); }

void use_device(int device) { TESSERA_CUDA_CHECK(cudaSetDevice(device)); }

}  // namespace tessera::cuda
