// Device memory for tests, on a GPU or in the emulator: uploads, downloads, bytes before and after that must stay as they are.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/context.hpp"
#include "kernels/cuda/runtime.hpp"

namespace tessera::kernels::testing {

/// For the start of a test of GPU code: skips where there is no GPU to run it.
#define TESSERA_NEEDS_DEVICE()                                                                                    \
  do {                                                                                                            \
    int devices = 0;                                                                                              \
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU: not tested on one"; \
  } while (false)

/// Bytes in device memory, 256-byte aligned, all bits set (NaN) at first, between guards.
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t bytes) : bytes_(bytes) {
    TESSERA_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&base_), bytes + 2 * guard));
    TESSERA_CUDA_CHECK(cudaMemset(base_, 0x5a, bytes + 2 * guard));
    TESSERA_CUDA_CHECK(cudaMemset(base_ + guard, 0xff, bytes));
  }
  explicit DeviceArray(const std::vector<std::byte>& from) : DeviceArray(from.size()) {
    TESSERA_CUDA_CHECK(cudaMemcpy(base_ + guard, from.data(), from.size(), cudaMemcpyHostToDevice));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(base_); }

  std::byte* data() { return base_ + guard; }
  float* floats() { return reinterpret_cast<float*>(data()); }
  Context context() { return {.workspace = {data(), bytes_}, .backend = Backend::cuda}; }

  /// The bytes after all work on the device.
  std::vector<std::byte> download() const {
    std::vector<std::byte> all = everything();
    return {all.begin() + guard, all.end() - guard};
  }
  /// Whether kernels stayed inside.
  bool intact() const {
    std::vector<std::byte> all = everything();
    auto whole = [](auto begin, auto end) { return std::all_of(begin, end, [](std::byte b) { return b == std::byte{0x5a}; }); };
    return whole(all.begin(), all.begin() + guard) && whole(all.end() - guard, all.end());
  }

 private:
  static constexpr std::ptrdiff_t guard = 256;
  std::vector<std::byte> everything() const {
    std::vector<std::byte> all(bytes_ + 2 * guard);
    TESSERA_CUDA_CHECK(cudaDeviceSynchronize());
    TESSERA_CUDA_CHECK(cudaMemcpy(all.data(), base_, all.size(), cudaMemcpyDeviceToHost));
    return all;
  }
  std::size_t bytes_;
  std::byte* base_ = nullptr;
};

}  // namespace tessera::kernels::testing
