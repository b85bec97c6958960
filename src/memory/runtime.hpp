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
  int threads_before_;  ///< OpenMP's, of this thread
};

/// Threads of the runtime that lives; 0 where none does.
int runtime_threads();
/// Calls `end` once, before the runtime that lives comes to its end.
void at_runtime_end(void (*end)());

/// Kokkos can be started once in a process. While this lives, the first KernelRuntime starts it and later ones go on with it, each with its
/// own number of threads: for a process that runs one training after another. A later one must not ask for what the first has not started.
class KeptKokkos {
 public:
  KeptKokkos();
  ~KeptKokkos();
  KeptKokkos(const KeptKokkos&) = delete;
  KeptKokkos& operator=(const KeptKokkos&) = delete;
};

}  // namespace tessera
