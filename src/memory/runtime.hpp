// Starts and ends Kokkos. Commands that need no kernels must not start it: users plan on login nodes.
#pragma once

namespace tessera {

/// While it lives, host kernels run on `threads` threads (0: what Kokkos chooses). One at a time.
class KernelRuntime {
 public:
  explicit KernelRuntime(int threads);
  ~KernelRuntime();
  KernelRuntime(const KernelRuntime&) = delete;
  KernelRuntime& operator=(const KernelRuntime&) = delete;
};

}  // namespace tessera
