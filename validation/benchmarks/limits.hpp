// The machine's limits, measured in the run that is compared with them, and what the kernel benchmarks share.
#pragma once
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/clock.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/parallel.hpp"
#include "memory/arena.hpp"
#include "memory/runtime.hpp"

namespace tessera::benchmarks {

/// Huge-page memory filled with small random numbers of the type.
class Data {
 public:
  explicit Data(std::size_t bytes) : arena_(Tier::host, std::max<std::size_t>(bytes, 64), "benchmark") {}
  Data(std::int64_t n, DType t) : Data(static_cast<std::size_t>(n) * size_of(t)) {
    std::uint32_t s = 1;
    for (std::int64_t i = 0; i < n; ++i) {
      float f = static_cast<float>((s = s * 1664525u + 1013904223u) >> 8) / static_cast<float>(1 << 23) - 1;
      bf16 h(f);
      if (t == DType::f32)
        std::memcpy(arena_.data() + i * 4, &f, 4);
      else
        std::memcpy(arena_.data() + i * 2, &h.bits, 2);
    }
  }
  void* data() { return arena_.data(); }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(arena_.data());
  }
  kernels::Context context(bool reproducible = false) {
    return {.workspace = {arena_.data(), arena_.bytes()}, .reproducible = reproducible};
  }

 private:
  Arena arena_;
};

/// A clock for what computes: with one thread its processor time, which others' load on the machine leaves alone.
inline double compute_seconds() {
  if (kernels::threads() > 1) return now_seconds();
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Seconds of the fastest of a few calls within about `budget` seconds.
template <class F>
double fastest(F f, double budget = 0.4) {
  f();
  double best = 1e30, start = now_seconds();
  for (int n = 0; n < 3 || now_seconds() - start < budget; ++n) {
    double t = compute_seconds();
    f();
    best = std::min(best, compute_seconds() - t);
  }
  return best;
}

/// gemm of a type with packed weights, where packing brings something, and its operands.
class PackedProduct {
 public:
  PackedProduct(std::int64_t M, std::int64_t N, std::int64_t K, DType t)
      : a_(M * K, t),
        b_(N * K, t),
        c_(M * N, t),
        g_{.c = c_.data(), .a = a_.data(), .b = b_.data(), .M = M, .N = N, .K = K, .b_transposed = true, .in = t, .out = t},
        packed_(kernels::gemm_packed_bytes(g_)) {
    if (kernels::gemm_packed_bytes(g_) > 0) {
      Data none(std::size_t{64});
      kernels::gemm_pack_b(none.context(), packed_.data(), g_);
      g_.b = packed_.data();
      g_.b_packed = true;
    }
    workspace_ = std::make_unique<Data>(kernels::gemm_workspace_bytes(g_));
  }
  double flops() const { return 2. * static_cast<double>(g_.M) * static_cast<double>(g_.N) * static_cast<double>(g_.K); }
  void operator()() { kernels::gemm(workspace_->context(), g_); }

 private:
  Data a_, b_, c_;
  kernels::Gemm g_;
  Data packed_;
  std::unique_ptr<Data> workspace_;
};

/// FLOP/s of gemm with packed weights at 1024 x 3072 x 768: what "the GEMM rate of this machine" means.
inline double gemm_rate(DType t) {
  PackedProduct product(1024, 3072, 768, t);
  return product.flops() / fastest([&] { product(); });
}

/// Bytes/s of y = x * 1.5 over 512 MiB on all threads, read plus written.
inline double stream_rate() {
  constexpr std::int64_t n = 64 << 20;
  Data x(n, DType::f32), y(n, DType::f32);
  return 8. * n / fastest([&] {
           kernels::parallel_ranges(n, 4096, [&](std::int64_t b, std::int64_t e) {
             const float* from = x.as<float>();
             float* to = y.as<float>();
             for (std::int64_t i = b; i < e; ++i) to[i] = from[i] * 1.5f;
           });
         });
}

/// Runs the registered benchmarks with OMP_NUM_THREADS threads (all cores without it).
inline int run(int argc, char** argv) {
  KernelRuntime runtime(0);
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("threads", std::to_string(kernels::threads()));
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace tessera::benchmarks
