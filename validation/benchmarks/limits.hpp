// The machine's limits, measured in the run that is compared with them, and what the kernel benchmarks share.
#pragma once
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

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

/// Seconds of the fastest of a few calls within about `budget` seconds.
template <class F>
double fastest(F f, double budget = 0.4) {
  f();
  double best = 1e30, start = now_seconds();
  for (int n = 0; n < 3 || now_seconds() - start < budget; ++n) {
    double t = now_seconds();
    f();
    best = std::min(best, now_seconds() - t);
  }
  return best;
}

/// FLOP/s of gemm with packed weights at 1024 x 3072 x 768: what "the GEMM rate of this machine" means.
inline double gemm_rate(DType t) {
  constexpr std::int64_t M = 1024, N = 3072, K = 768;
  Data a(M * K, t), b(N * K, t), c(M * N, t);
  kernels::Gemm g{.c = c.data(), .a = a.data(), .b = b.data(), .M = M, .N = N, .K = K, .b_transposed = true, .in = t, .out = t};
  Data packed(kernels::gemm_packed_bytes(g)), none(std::size_t{64});
  if (kernels::gemm_packed_bytes(g) > 0) {
    kernels::gemm_pack_b(none.context(), packed.data(), g);
    g.b = packed.data();
    g.b_packed = true;
  }
  Data workspace(kernels::gemm_workspace_bytes(g));
  return 2. * M * N * K / fastest([&] { kernels::gemm(workspace.context(), g); });
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
