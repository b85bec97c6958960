#include "kernels/parallel.hpp"

#include <omp.h>

#include <Kokkos_Core.hpp>
#include <atomic>
#include <mutex>

#include "base/types.hpp"
#include "memory/runtime.hpp"

namespace tessera::kernels {
namespace {
using Host = Kokkos::DefaultHostExecutionSpace;

std::atomic<int> g_planned_threads{1};

/// The default space has the threads that Kokkos was started with, which a later runtime of the process may differ from.
Host space_of(int threads) {
  Host space;
  return space.concurrency() == threads ? space : Host(threads);
}

/// Making an execution space allocates, and asking it for its threads makes one: so one is kept while a runtime lives, and given back
/// before that ends.
struct KeptSpace {
  Host space = space_of(runtime_threads());
  int threads = space.concurrency();
};
std::atomic<KeptSpace*> g_kept{nullptr};
std::mutex g_making;

KeptSpace* kept_space() {
  if (KeptSpace* kept = g_kept.load(std::memory_order_acquire)) return kept;
  if (runtime_threads() == 0) return nullptr;
  std::lock_guard lock(g_making);
  if (!g_kept.load()) {
    g_kept = new KeptSpace;
    at_runtime_end([] { delete g_kept.exchange(nullptr); });
  }
  return g_kept;
}

bool inline_only() { return omp_in_parallel() || threads() == 1 || !kept_space(); }
}  // namespace

int threads() {
  const KeptSpace* kept = kept_space();
  return kept ? kept->threads : g_planned_threads.load();
}

void plan_for_threads(int threads) { g_planned_threads = threads; }

void parallel_ranges(std::int64_t n, std::int64_t grain, RangeFunction f) {
  if (n <= 0) return;
  std::int64_t pieces = ceil_div(n, grain), workers = inline_only() ? 1 : std::min<std::int64_t>(threads(), pieces);
  if (workers == 1) return f(0, n);
  Kokkos::parallel_for("tessera.ranges", Kokkos::RangePolicy<Host>(kept_space()->space, 0, workers), [=](std::int64_t w) {
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
  using Policy = Kokkos::RangePolicy<Host, Kokkos::Schedule<Kokkos::Dynamic>>;
  Kokkos::parallel_for("tessera.tiles", Policy(kept_space()->space, 0, n, Kokkos::ChunkSize(1)), [=](std::int64_t i) { f(i, i + 1); });
}

}  // namespace tessera::kernels
