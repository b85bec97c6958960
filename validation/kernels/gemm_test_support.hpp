// What the tests of the matrix kernels share: random operands in both types, poisoned outputs, workspaces, thread counts.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "kernels/context.hpp"
#include "memory/runtime.hpp"
#include "validation/kernels/seed.hpp"
#include "validation/kernels/workspace.hpp"

namespace tessera::kernels::testing {

/// A tensor in fp32, bf16 or fp16 that is compared and filled as doubles.
class Tensor {
 public:
  Tensor(std::int64_t n, DType t) : n_(n), type_(t), bytes_(static_cast<std::size_t>(n) * size_of(t)) {
    EXPECT_TRUE(is_float(t));
    poison();
  }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(bytes_.data());
  }
  std::int64_t size() const { return n_; }
  DType type() const { return type_; }
  double get(std::int64_t i) const {
    const std::byte* p = bytes_.data() + static_cast<std::size_t>(i) * size_of(type_);
    const auto read = [&](auto x) {
      std::memcpy(static_cast<void*>(&x), p, sizeof x);
      return static_cast<double>(static_cast<float>(x));
    };
    return type_ == DType::f32 ? read(0.0f) : type_ == DType::bf16 ? read(bf16()) : read(f16());
  }
  void set(std::int64_t i, double v) {
    std::byte* p = bytes_.data() + static_cast<std::size_t>(i) * size_of(type_);
    const auto write = [&](auto x) { std::memcpy(p, static_cast<const void*>(&x), sizeof x); };
    const auto f = static_cast<float>(v);
    type_ == DType::f32 ? write(f) : type_ == DType::bf16 ? write(bf16(f)) : write(f16(f));
  }
  void poison() {
    for (std::int64_t i = 0; i < n_; ++i) set(i, std::numeric_limits<double>::quiet_NaN());
  }
  void zero() { std::fill(bytes_.begin(), bytes_.end(), std::byte{0}); }
  void randomize(unsigned seed, double scale = 1) {
    std::uint64_t s = (seed + test_seed()) * 0x9e3779b97f4a7c15u + 1;
    for (std::int64_t i = 0; i < n_; ++i) {
      s = s * 6364136223846793005u + 1442695040888963407u;
      set(i, scale * (static_cast<double>(s >> 33) / static_cast<double>(1ull << 30) - 1));
    }
  }
  std::vector<double> doubles() const {
    std::vector<double> d(static_cast<std::size_t>(n_));
    for (std::int64_t i = 0; i < n_; ++i) d[static_cast<std::size_t>(i)] = get(i);
    return d;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::int64_t n_;
  DType type_;
  std::vector<std::byte> bytes_;
};

/// |a - b| / |b|, NaN where anything is.
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

inline double tolerance(DType t) { return t == DType::f32 ? 1e-5 : t == DType::bf16 ? 1e-2 : 1.3e-3; }

// Kokkos' thread count is fixed when it starts, so a test of other counts runs this binary again with TEST_THREADS set and compares the
// digests of results that the named test prints.
inline void print_digest(const std::string& hex) { std::printf("digest %s\n", hex.c_str()); }

inline std::string digest_with_threads(const std::string& test, int threads) {
  std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::string command = fmt::format("TEST_THREADS={} OMP_NUM_THREADS={} '{}' --gtest_filter={} 2>/dev/null", threads, threads, self, test);
  std::string digest;
  char line[256];
  FILE* pipe = popen(command.c_str(), "r");
  while (pipe && std::fgets(line, sizeof line, pipe))
    if (std::string_view(line).starts_with("digest ")) digest = line + 7;
  if (!pipe || pclose(pipe) != 0) return fmt::format("failed: {}", command);
  return digest;
}

inline void expect_same_digest(const std::string& test) {
  std::string one = digest_with_threads(test, 1);
  EXPECT_EQ(one.size(), 33u) << one;
  for (int threads : {2, 3}) EXPECT_EQ(digest_with_threads(test, threads), one) << threads << " threads";
}

}  // namespace tessera::kernels::testing
