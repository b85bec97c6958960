// Memory of a GPU for tests, or of the emulator, and the checks that every test of a GPU kernel makes.
#pragma once
#include <cuda_runtime.h>

#include "base/check.hpp"
#include "kernels/cuda/runtime.hpp"
#include "same_bits.hpp"

#ifdef TESSERA_EMULATED_GPU
#include <emulator.hpp>
#endif

namespace tessera::kernels::testing {

/// n values on the device between two guards. Poisoned: NaN in fp32 and bf16, -1 in integers. `shift` moves the first value off its
/// 256-byte boundary by that many values.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::int64_t n, std::int64_t shift = 0) : n_(n), shift_(shift) {
    TESSERA_CUDA_CHECK(cudaMalloc(&memory_, bytes()));
    TESSERA_CUDA_CHECK(cudaMemset(memory_, 0xff, bytes()));
  }
  explicit DeviceArray(const std::vector<T>& values, std::int64_t shift = 0)
      : DeviceArray(static_cast<std::int64_t>(values.size()), shift) {
    *this = values;
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  DeviceArray& operator=(const std::vector<T>& values) {
    TESSERA_REQUIRE(static_cast<std::int64_t>(values.size()) == n_, "{} values for {}", values.size(), n_);
    TESSERA_CUDA_CHECK(cudaMemcpy(data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return *this;
  }
  ~DeviceArray() {
    expect_guards();
    cudaFree(memory_);
  }

  T* data() { return reinterpret_cast<T*>(memory_ + guard) + shift_; }
  std::int64_t size() const { return n_; }
  std::vector<T> host() {
    std::vector<T> values(static_cast<std::size_t>(n_));
    TESSERA_CUDA_CHECK(cudaDeviceSynchronize());
    TESSERA_CUDA_CHECK(cudaMemcpy(values.data(), data(), values.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  static constexpr std::size_t guard = 256;
  std::size_t bytes() const { return 2 * guard + static_cast<std::size_t>(n_ + shift_) * sizeof(T); }
  void expect_guards() {
    std::vector<std::byte> all(bytes());
    if (cudaDeviceSynchronize() != cudaSuccess || cudaMemcpy(all.data(), memory_, bytes(), cudaMemcpyDeviceToHost) != cudaSuccess) {
      ADD_FAILURE() << "the device failed: " << cudaGetErrorString(cudaGetLastError());
      return;
    }
    const std::size_t first = guard + static_cast<std::size_t>(shift_) * sizeof(T);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i == first) i += static_cast<std::size_t>(n_) * sizeof(T);
      if (i < all.size() && all[i] != std::byte{0xff}) {
        ADD_FAILURE() << "byte " << static_cast<std::int64_t>(i - first) << " of an array of " << n_ << " values was written";
        return;
      }
    }
  }

  std::byte* memory_ = nullptr;
  std::int64_t n_, shift_;
};

/// Workspace on the device and the context that lends it.
class DeviceWorkspace {
 public:
  explicit DeviceWorkspace(std::size_t bytes = 0) : memory_(static_cast<std::int64_t>(bytes)) {}
  Context context() {
    return {.workspace = {memory_.data(), static_cast<std::size_t>(memory_.size())}, .reproducible = true, .backend = Backend::cuda};
  }

 private:
  DeviceArray<std::byte> memory_;
};

/// Tests of GPU kernels: skipped where there is no GPU.
class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "there is no GPU";
  }
};

/// f's digest a second time, and in the emulator with its threads run backward between barriers.
inline void expect_same_bits_on_device(const std::function<Hash128()>& f) {
  const Hash128 expected = f();
  EXPECT_EQ(f().hex(), expected.hex()) << "second run";
#ifdef TESSERA_EMULATED_GPU
  emulator::set_order(emulator::Order::backward);
  EXPECT_EQ(f().hex(), expected.hex()) << "threads in backward order";
  emulator::set_order(emulator::Order::forward);
#endif
}

/// |a - b| / |b| over all elements (2-norms); infinite where a value is NaN.
template <class T>
double norm_error(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<double>(static_cast<float>(a[i])), y = static_cast<double>(static_cast<float>(b[i]));
    difference += (x - y) * (x - y), norm += y * y;
  }
  if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
  return norm == 0 ? difference : std::sqrt(difference / norm);
}

/// Allowed norm_error of a kernel against its host twin.
template <class T>
constexpr double device_tolerance() {
  return sizeof(T) == 4 ? 1e-5 : 1e-2;
}

}  // namespace tessera::kernels::testing
