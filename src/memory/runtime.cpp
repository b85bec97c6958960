#include "memory/runtime.hpp"

#include <Kokkos_Core.hpp>

namespace tessera {

KernelRuntime::KernelRuntime(int threads, [[maybe_unused]] int device) {
  Kokkos::InitializationSettings settings;
  // Kokkos advises on OMP_PROC_BIND at every start; ranks are bound by the topology layer.
  settings.set_disable_warnings(true);
  if (threads > 0) settings.set_num_threads(threads);
#ifdef KOKKOS_ENABLE_CUDA
  if (device >= 0) settings.set_device_id(device);
#endif
  Kokkos::initialize(settings);
}

KernelRuntime::~KernelRuntime() { Kokkos::finalize(); }

}  // namespace tessera
