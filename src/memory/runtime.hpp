// Starts and ends Kokkos. Commands that need no kernels must not start it: users plan on login nodes.
#pragma once

namespace tessera {

/// What Kokkos starts. Its GPU part ends the program where there is no GPU, and takes memory of one where there is; so a run on the host
/// starts the host's part alone, also in a build with CUDA.
enum class Spaces { host, host_and_gpu };

/// While it lives, host kernels run on `threads` threads (0: what Kokkos chooses), and Kokkos' memory on GPUs is that of `device` (-1: what
/// Kokkos chooses). One at a time.
class KernelRuntime {
 public:
  explicit KernelRuntime(int threads, Spaces spaces = Spaces::host, int device = -1);
  ~KernelRuntime();
  KernelRuntime(const KernelRuntime&) = delete;
  KernelRuntime& operator=(const KernelRuntime&) = delete;

 private:
  bool whole_;  ///< all of Kokkos was started
};

}  // namespace tessera
