#include "memory/runtime.hpp"

#include <omp.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/limits.hpp"
#include "memory/kokkos_memory.hpp"

namespace tessera {
namespace {
using Host = Kokkos::DefaultHostExecutionSpace;

// The process's own, as Kokkos is.
struct Started {
  bool stands = false, whole = false;  ///< whole: all of Kokkos
  int device = -1;
  bool kept = false;
};
Started g_kokkos;
std::atomic<int> g_threads{0};
std::vector<void (*)()> g_ends;

bool starts_whole(Spaces spaces) {
#ifdef KOKKOS_ENABLE_CUDA
  return spaces == Spaces::host_and_gpu;
#else
  (void)spaces;  // the host's spaces are all that this Kokkos has
  return true;
#endif
}

/// Of a Kokkos that knows no GPU it does not matter.
int device_of(int device) {
#ifdef KOKKOS_ENABLE_CUDA
  return device;
#else
  return std::min(device, -1);
#endif
}

void start_kokkos(int threads, bool whole, int device) {
  Kokkos::InitializationSettings settings;
  // Kokkos advises on OMP_PROC_BIND at every start; ranks are bound by the topology layer.
  settings.set_disable_warnings(true);
  if (threads > 0) settings.set_num_threads(threads);
#ifdef KOKKOS_ENABLE_CUDA
  if (device >= 0) settings.set_device_id(device);
#endif
  g_kokkos = {.stands = true, .whole = whole, .device = device_of(device), .kept = g_kokkos.kept};
  if (whole) {
    Kokkos::initialize(settings);
    return;
  }
  // What Kokkos::initialize does, for one execution space.
  Kokkos::Impl::pre_initialize(settings);
  Host::impl_initialize(settings);
  Kokkos::Impl::post_initialize(settings);
}

void end_kokkos() {
  if (!std::exchange(g_kokkos.stands, false)) return;
  if (g_kokkos.whole) {
    Kokkos::finalize();
    return;
  }
  Kokkos::Impl::pre_finalize();
  Host::impl_finalize();
  Kokkos::Impl::post_finalize();
}

}  // namespace

KernelRuntime::KernelRuntime(int threads, Spaces spaces, int device) : threads_before_(omp_get_max_threads()) {
  const bool whole = starts_whole(spaces);
  if (threads > 0) threads = std::min(threads, most_threads);
  if (!g_kokkos.stands) {
    start_kokkos(threads, whole, device);
    g_threads = Host().concurrency();
    return;
  }
  if (runtime_threads() != 0) throw Error(ExitCode::internal, "Kokkos was started twice; this is a defect of Tessera");
  if (whole && (!g_kokkos.whole || device_of(device) != g_kokkos.device))
    throw Error(ExitCode::internal, "Kokkos runs in this process on other devices than now requested, and can be started only once");
  if (threads > 0) omp_set_num_threads(threads);
  g_threads = omp_get_max_threads();
}

KernelRuntime::~KernelRuntime() {
  const bool failed = g_kokkos.whole && gpu_has_failed();  // see kokkos_free
  if (failed) return;
  while (!g_ends.empty()) {
    void (*const end)() = g_ends.back();
    g_ends.pop_back();
    end();
  }
  g_threads = 0;
  if (!g_kokkos.kept) end_kokkos();
  omp_set_num_threads(threads_before_);
}

int runtime_threads() { return g_threads.load(std::memory_order_relaxed); }

void at_runtime_end(void (*end)()) { g_ends.push_back(end); }

KeptKokkos::KeptKokkos() { g_kokkos.kept = true; }

KeptKokkos::~KeptKokkos() {
  g_kokkos.kept = false;
  if (runtime_threads() == 0 && !(g_kokkos.whole && gpu_has_failed())) end_kokkos();
}

}  // namespace tessera
