// Shared by kernel tests: poisoned buffers, fp64 copies, and the same computation under other thread counts.
#pragma once
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "base/hash.hpp"
#include "memory/runtime.hpp"
#include "validation/kernels/seed.hpp"
#include "validation/kernels/workspace.hpp"

namespace tessera::kernels::testing {

/// n values of T, every bit set: NaN in fp32, bf16 and fp16, so an element that is not written shows.
template <class T>
std::vector<T> poisoned(std::int64_t n) {
  std::vector<T> v(static_cast<std::size_t>(n));
  std::memset(static_cast<void*>(v.data()), 0xff, v.size() * sizeof(T));
  return v;
}

/// Normal values, rounded to T; others with another test_seed().
template <class T>
std::vector<T> random_values(std::int64_t n, unsigned seed, float std = 1.0f) {
  std::mt19937 engine(seed + test_seed());
  std::normal_distribution<float> normal(0.0f, std);
  std::vector<T> v(static_cast<std::size_t>(n));
  for (T& x : v) x = T(normal(engine));
  return v;
}

template <class T>
std::vector<double> doubles(const std::vector<T>& v) {
  std::vector<double> d(v.size());
  std::transform(v.begin(), v.end(), d.begin(), [](T x) { return static_cast<double>(static_cast<float>(x)); });
  return d;
}

/// Largest |value - reference|, against the largest |reference| (or term of it that cancels); infinite where a value is NaN.
template <class T>
double relative_error(const std::vector<T>& value, const std::vector<double>& reference, double largest_term = 0) {
  if (value.size() != reference.size()) return std::numeric_limits<double>::infinity();
  double worst = 0, scale = std::max(largest_term, 1e-300);
  for (std::size_t i = 0; i < value.size(); ++i) {
    double difference = std::abs(static_cast<double>(static_cast<float>(value[i])) - reference[i]);
    worst = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(worst, difference);
    scale = std::max(scale, std::abs(reference[i]));
  }
  return worst / scale;
}

/// Allowed relative_error of a result in T.
template <class T>
constexpr double tolerance() {
  if (std::is_same_v<T, bf16>) return 4.1e-3;  // half a step at the largest value is 2^-8
  if (std::is_same_v<T, f16>) return 5.2e-4;   // and 2^-11
  return 2e-6;
}

template <class T>
Hash128 digest(const std::vector<T>& v) {
  return hash_bytes(v.data(), v.size() * sizeof(T));
}
template <class T, class... More>
Hash128 digest(const std::vector<T>& v, const std::vector<More>&... more) {
  return hash_text(digest(v).hex() + digest(more...).hex());
}

/// f's digest in a child process whose Kokkos has that many threads (Kokkos starts once a process). Zero if the child failed.
inline Hash128 digest_with_threads(int threads, const std::function<Hash128()>& f) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  pid_t child = fork();
  if (child == 0) {
    int status = 1;
    try {
      const KernelRuntime runtime(threads);
      Hash128 h = f();
      status = write(ends[1], &h, sizeof h) == sizeof h ? 0 : 1;
    } catch (...) {
    }
    _exit(status);
  }
  close(ends[1]);
  Hash128 h;
  int status = 1;
  bool complete = read(ends[0], &h, sizeof h) == sizeof h;
  close(ends[0]);
  waitpid(child, &status, 0);
  return complete && status == 0 ? h : Hash128{};
}

/// The same bits without Kokkos, twice, and over 1, 2 and 3 threads.
inline void expect_same_bits(const std::function<Hash128()>& f) {
  Hash128 expected = f();
  EXPECT_EQ(f().hex(), expected.hex()) << "second run";
  for (int threads : {1, 2, 3}) EXPECT_EQ(digest_with_threads(threads, f).hex(), expected.hex()) << threads << " threads";
}

/// d loss / d x[i] for every i by central differences of a fp64 loss.
inline std::vector<double> finite_differences(std::vector<double> x, const std::function<double(const std::vector<double>&)>& loss) {
  constexpr double h = 1e-5;
  std::vector<double> gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    double at = x[i];
    x[i] = at + h;
    double above = loss(x);
    x[i] = at - h;
    double below = loss(x);
    x[i] = at;
    gradient[i] = (above - below) / (2 * h);
  }
  return gradient;
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace tessera::kernels::testing
