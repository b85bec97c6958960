// Memory of a GPU for tests, or of the emulator, and the checks that every test of a GPU kernel makes.
#pragma once
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/backend.hpp"
#include "kernels/context.hpp"
#include "kernels/cuda/devices.hpp"
#include "kernels/cuda/runtime.hpp"
#include "same_bits.hpp"
#include "validation/unit/sample.hpp"
#include "validation/watched_device.hpp"

#ifdef TESSERA_EMULATED_GPU
#include <emulator.hpp>
#endif

namespace tessera::kernels::testing {

/// For the start of a test of GPU code: skips where there is no GPU to run it.
#define TESSERA_NEEDS_DEVICE()                                                             \
  do {                                                                                     \
    if (::tessera::cuda::device_count() == 0) GTEST_SKIP() << "no GPU: not tested on one"; \
  } while (false)

/// Whether this is the race build, where a kernel takes tens of times as long: more lengths, and the same kernels again, are no other
/// races.
inline bool watches_races() {
#ifdef TESSERA_EMULATED_GPU
  return emulator::watches_races();
#else
  return false;
#endif
}

/// Of the cases of a test all on a GPU; in the emulator, which takes as long as they have threads, `count` that are drawn, and half of
/// these where races are watched.
class DeviceSample {
 public:
  template <class Cases>
  auto some(const Cases& all, std::size_t count) {
#ifdef TESSERA_EMULATED_GPU
    return sample_.some(all, watches_races() ? std::max<std::size_t>(count / 2, 1) : count);
#else
    return sample_.some(all, std::max(count, std::size(all)));
#endif
  }

 private:
  test::Sample sample_;
};

/// Bytes in device memory, all bits set at first (NaN in fp32 and bf16, -1 in integers), between guards that a kernel must leave alone.
/// `offset` moves them off a 256-byte boundary.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t bytes, std::size_t offset = 0) : bytes_(bytes), first_(guard + offset) {
    TESSERA_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&base_), first_ + bytes + guard));
    TESSERA_CUDA_CHECK(cudaMemset(base_, 0x5a, first_ + bytes + guard));
    TESSERA_CUDA_CHECK(cudaMemset(data(), 0xff, bytes));
  }
  explicit DeviceBytes(const std::vector<std::byte>& from) : DeviceBytes(from.size()) { upload(from.data()); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  ~DeviceBytes() {
    EXPECT_TRUE(intact()) << "bytes around an array of " << bytes_ << " bytes were written";
    cudaFree(base_);
  }

  std::byte* data() { return base_ + first_; }
  float* floats() { return reinterpret_cast<float*>(data()); }
  std::size_t size() const { return bytes_; }
  /// Lends the bytes as workspace.
  Context context() { return {.workspace = {data(), bytes_}, .reproducible = true, .backend = Backend::cuda}; }
  void upload(const void* from) { TESSERA_CUDA_CHECK(cudaMemcpy(data(), from, bytes_, cudaMemcpyHostToDevice)); }

  /// The bytes after all work on the device.
  std::vector<std::byte> download() const { return read(first_, bytes_); }
  bool intact() const {
    for (const auto& guards : {read(0, first_), read(first_ + bytes_, guard)}) {
      for (std::byte b : guards)
        if (b != std::byte{0x5a}) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t guard = 256;
  std::vector<std::byte> read(std::size_t begin, std::size_t bytes) const {
    std::vector<std::byte> out(bytes);
    const bool done =
        cudaDeviceSynchronize() == cudaSuccess && cudaMemcpy(out.data(), base_ + begin, bytes, cudaMemcpyDeviceToHost) == cudaSuccess;
    EXPECT_TRUE(done) << "the device failed: " << cudaGetErrorString(cudaGetLastError());
    return out;
  }

  std::size_t bytes_, first_;
  std::byte* base_ = nullptr;
};

/// n values of T in DeviceBytes. `shift` moves the first value off its 256-byte boundary by that many values.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::int64_t n, std::int64_t shift = 0)
      : memory_(static_cast<std::size_t>(n) * sizeof(T), static_cast<std::size_t>(shift) * sizeof(T)) {}
  explicit DeviceArray(const std::vector<T>& values, std::int64_t shift = 0)
      : DeviceArray(static_cast<std::int64_t>(values.size()), shift) {
    *this = values;
  }
  DeviceArray& operator=(const std::vector<T>& values) {
    TESSERA_CUDA_REQUIRE(static_cast<std::int64_t>(values.size()) == size());
    memory_.upload(values.data());
    return *this;
  }

  T* data() { return reinterpret_cast<T*>(memory_.data()); }
  std::int64_t size() const { return static_cast<std::int64_t>(memory_.size() / sizeof(T)); }
  std::vector<T> host() const {
    std::vector<T> values(static_cast<std::size_t>(size()));
    const std::vector<std::byte> bytes = memory_.download();
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

 private:
  DeviceBytes memory_;
};

/// Tests of GPU kernels: skipped where there is no GPU.
class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override { TESSERA_NEEDS_DEVICE(); }
};

/// Tests of kernels for Hopper GPUs, which the emulator claims to be; on one the tests that choose by the GPU take them too.
class OnHopper : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
#ifdef TESSERA_EMULATED_GPU
    emulator::set_compute_capability(9);
#endif
    if (!IsSkipped() && !tessera::cuda::is_hopper()) GTEST_SKIP() << "not a Hopper GPU: its kernels are not tested";
  }
#ifdef TESSERA_EMULATED_GPU
  void TearDown() override { emulator::set_compute_capability(8, 6); }
#endif
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
  if (std::is_same_v<T, bf16>) return 1e-2;
  return std::is_same_v<T, f16> ? 1.3e-3 : 1e-5;
}

}  // namespace tessera::kernels::testing
