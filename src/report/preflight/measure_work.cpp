#include "report/preflight/measure_work.hpp"

#include <algorithm>
#include <numeric>

#include "base/clock.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/gemm/gemm.hpp"
#include "train/engine/device.hpp"

namespace tessera {
namespace {

struct WorkSizes {
  std::int64_t product;  ///< dims
  std::size_t copied;    ///< bytes: more than caches hold
};
constexpr WorkSizes sizes_of(kernels::Backend backend) {
  return backend == kernels::Backend::cuda ? WorkSizes{4096, std::size_t{256} << 20} : WorkSizes{512, std::size_t{32} << 20};
}

/// Of a call that is repeated for so long, by this rank's own clock: a rank that is slow makes fewer.
double seconds_of_call(kernels::Backend backend, double seconds, const std::function<void()>& call) {
  constexpr double least_batch = 2e-3;  // for GPUs, whose calls are waited for together
  constexpr std::size_t least_batches = 3;
  const auto timed = [&](int calls) {
    const double begin = now_seconds();
    for (int i = 0; i < calls; ++i) call();
    wait_for_device(backend);
    return (now_seconds() - begin) / calls;
  };
  timed(1);  // what is done once
  const double end = now_seconds() + seconds;
  const int calls = std::clamp(static_cast<int>(least_batch / std::max(timed(1), 1e-7)), 1, 1000);
  std::vector<double> all;
  while (all.size() < least_batches || now_seconds() < end) all.push_back(timed(calls));
  // In the slower half something else ran.
  std::ranges::sort(all);
  const std::size_t half = (all.size() + 1) / 2;
  return std::accumulate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(half), 0.0) / static_cast<double>(half);
}

double product_rate(Bench& bench, DType dtype, double seconds) {
  const std::int64_t n = sizes_of(bench.backend()).product;
  bench.release();
  kernels::Gemm gemm{.M = n, .N = n, .K = n, .b_transposed = true, .in = dtype, .out = dtype};
  const auto matrix = static_cast<std::size_t>(n * n) * size_of(dtype);
  gemm.a = bench.take(matrix), gemm.b = bench.take(matrix), gemm.c = bench.take(matrix);
  const kernels::Context context = bench.context(kernels::gemm_workspace_bytes(gemm, bench.backend()));
  const double flops = 2 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  return flops / seconds_of_call(bench.backend(), seconds, [&] { kernels::gemm(context, gemm); });
}

double copy_rate(Bench& bench, double seconds) {
  const std::size_t bytes = sizes_of(bench.backend()).copied;
  bench.release();
  void *to = bench.take(bytes), *from = bench.take(bytes);
  const kernels::Context context = bench.context(0);
  return 2 * static_cast<double>(bytes) / seconds_of_call(bench.backend(), seconds, [&] { kernels::copy(context, to, from, bytes); });
}

double transfer_rate(Bench& bench, bool to_gpu, double seconds) {
  constexpr std::size_t bytes = std::size_t{64} << 20;
  const Arena host(Tier::pinned, bytes, "tessera.preflight.transfer");
  bench.release();
  void* device = bench.take(bytes);
  const kernels::Context context = bench.context(0);
  return static_cast<double>(bytes) / seconds_of_call(bench.backend(), seconds, [&] {
           kernels::copy(context, to_gpu ? device : host.data(), to_gpu ? host.data() : device, bytes);
         });
}

}  // namespace

std::size_t work_bytes(kernels::Backend backend) { return 3 * sizes_of(backend).copied; }

void measure_work(Bench& bench, double seconds, const std::function<void(const std::string&)>& progress, RankMeasures& measures) {
  const bool gpu = bench.backend() == kernels::Backend::cuda;
  const double each = seconds / (gpu ? 5 : 3);
  const World& world = bench.world();
  const auto measure = [&](const std::string& name, const std::function<double()>& rate) {
    progress(name);
    world.barrier();  // all do the same at a time, as in a step: who shares something shares it here too
    measures.measures.push_back({.name = name, .kind = RankMeasureKind::work, .rate = rate()});
  };
  for (const DType dtype : {DType::bf16, DType::f32})
    measure(fmt::format("product in {}", name_of(dtype)), [&] { return product_rate(bench, dtype, each); });
  measure("copy in memory", [&] { return copy_rate(bench, each); });
  if (!gpu) return;
  measure("copy to the GPU", [&] { return transfer_rate(bench, true, each); });
  measure("copy from the GPU", [&] { return transfer_rate(bench, false, each); });
}

}  // namespace tessera
