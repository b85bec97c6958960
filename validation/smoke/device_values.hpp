// Values in memory of the GPU.
#pragma once
#include <vector>

#include "kernels/cuda/runtime.hpp"

namespace tessera::smoke {

template <class T>
class DeviceValues {
 public:
  explicit DeviceValues(const std::vector<T>& from) : count_(from.size()) {
    TESSERA_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&data_), count_ * sizeof(T)));
    TESSERA_CUDA_CHECK(cudaMemcpy(data_, from.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
    TESSERA_CUDA_CHECK(cudaDeviceSynchronize());  // the copy may still be on its way, and streams of ours do not wait for it
  }
  ~DeviceValues() { cudaFree(data_); }
  DeviceValues(const DeviceValues&) = delete;
  DeviceValues& operator=(const DeviceValues&) = delete;

  T* data() const { return data_; }
  /// The values after all work on the device.
  std::vector<T> host() const {
    std::vector<T> values(count_);
    TESSERA_CUDA_CHECK(cudaDeviceSynchronize());
    TESSERA_CUDA_CHECK(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  std::size_t count_;
  T* data_ = nullptr;
};

}  // namespace tessera::smoke
