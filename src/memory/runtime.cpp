#include "memory/runtime.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>

#include "base/limits.hpp"
#include "memory/kokkos_memory.hpp"

namespace tessera {
namespace {
using Host = Kokkos::DefaultHostExecutionSpace;

bool starts_whole(Spaces spaces) {
#ifdef KOKKOS_ENABLE_CUDA
  return spaces == Spaces::host_and_gpu;
#else
  (void)spaces;  // the host's spaces are all that this Kokkos has
  return true;
#endif
}
}  // namespace

KernelRuntime::KernelRuntime(int threads, Spaces spaces, [[maybe_unused]] int device) : whole_(starts_whole(spaces)) {
  Kokkos::InitializationSettings settings;
  // Kokkos advises on OMP_PROC_BIND at every start; ranks are bound by the topology layer.
  settings.set_disable_warnings(true);
  if (threads > 0) settings.set_num_threads(std::min(threads, most_threads));
#ifdef KOKKOS_ENABLE_CUDA
  if (device >= 0) settings.set_device_id(device);
#endif
  if (whole_) {
    Kokkos::initialize(settings);
    return;
  }
  // What Kokkos::initialize does, for one execution space.
  Kokkos::Impl::pre_initialize(settings);
  Host::impl_initialize(settings);
  Kokkos::Impl::post_initialize(settings);
}

KernelRuntime::~KernelRuntime() {
  if (whole_ && gpu_has_failed()) return;  // see kokkos_free
  if (whole_) {
    Kokkos::finalize();
    return;
  }
  Kokkos::Impl::pre_finalize();
  Host::impl_finalize();
  Kokkos::Impl::post_finalize();
}

}  // namespace tessera
