// Starts and ends Kokkos. Commands that need no kernels must not start it: users plan on login nodes.
#pragma once

namespace tessera {

/// While it lives, host kernels run on `threads` threads (0: what Kokkos chooses), and Kokkos' memory on GPUs is that of `device` (-1: what
/// Kokkos chooses). One at a time.
class KernelRuntime {
 public:
  explicit KernelRuntime(int threads, int device = -1);
  ~KernelRuntime();
  KernelRuntime(const KernelRuntime&) = delete;
  KernelRuntime& operator=(const KernelRuntime&) = delete;
};

}  // namespace tessera
