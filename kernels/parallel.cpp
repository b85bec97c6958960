#include "kernels/parallel.hpp"

#include <omp.h>

#include <Kokkos_Core.hpp>
#include <atomic>

#include "base/types.hpp"

namespace tessera::kernels {
namespace {
std::atomic<int> g_planned_threads{1};

bool inline_only() { return !Kokkos::is_initialized() || omp_in_parallel() || threads() == 1; }
}  // namespace

int threads() { return Kokkos::is_initialized() ? Kokkos::DefaultHostExecutionSpace().concurrency() : g_planned_threads.load(); }

void plan_for_threads(int threads) { g_planned_threads = threads; }

void parallel_ranges(std::int64_t n, std::int64_t grain, RangeFunction f) {
  if (n <= 0) return;
  std::int64_t pieces = ceil_div(n, grain), workers = inline_only() ? 1 : std::min<std::int64_t>(threads(), pieces);
  if (workers == 1) return f(0, n);
  Kokkos::parallel_for("tessera.ranges", Kokkos::RangePolicy<Kokkos::DefaultHostExecutionSpace>(0, workers), [=](std::int64_t w) {
    std::int64_t begin = pieces * w / workers * grain, end = std::min(n, pieces * (w + 1) / workers * grain);
    if (begin < end) f(begin, end);
  });
}

void parallel_dynamic(std::int64_t n, RangeFunction f) {
  if (n <= 0) return;
  if (n == 1 || inline_only()) {
    for (std::int64_t i = 0; i < n; ++i) f(i, i + 1);
    return;
  }
  using Policy = Kokkos::RangePolicy<Kokkos::DefaultHostExecutionSpace, Kokkos::Schedule<Kokkos::Dynamic>>;
  Kokkos::parallel_for("tessera.dynamic", Policy(0, n, Kokkos::ChunkSize(1)), [=](std::int64_t i) { f(i, i + 1); });
}

}  // namespace tessera::kernels
