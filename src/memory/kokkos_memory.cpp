#include "memory/kokkos_memory.hpp"

#include <Kokkos_Core.hpp>
#include <cstdlib>
#include <cstring>

#include "base/backend.hpp"
#ifdef TESSERA_EMULATED_GPU
#include <cuda_runtime.h>
#endif

namespace tessera {
namespace {

#ifdef TESSERA_EMULATED_GPU
struct EmulatedSpace {
  bool pinned;
  void* allocate(const char*, std::size_t bytes) const {
    void* data = nullptr;
    const std::size_t pages = (bytes + 4095) / 4096 * 4096;  // as a GPU's own are
    pinned ? cudaHostAlloc(&data, pages, cudaHostAllocDefault) : cudaMalloc(&data, pages);
    return data;
  }
  void deallocate(const char*, void* data, std::size_t) const { pinned ? cudaFreeHost(data) : cudaFree(data); }
};
#endif

/// Calls f with the memory space of a tier; false where there is none.
template <class F>
bool with_space(Tier tier, F f) {
  if (tier == Tier::host) return f(Kokkos::HostSpace()), true;
#ifdef KOKKOS_ENABLE_CUDA
  if (tier == Tier::device) return f(Kokkos::CudaSpace()), true;
  if (tier == Tier::pinned) return f(Kokkos::CudaHostPinnedSpace()), true;
#elif defined(TESSERA_EMULATED_GPU)
  if (tier == Tier::device || tier == Tier::pinned) return f(EmulatedSpace{.pinned = tier == Tier::pinned}), true;
#endif
  return false;
}

}  // namespace

bool kokkos_has(Tier tier) {
#if defined(KOKKOS_ENABLE_CUDA) || defined(TESSERA_EMULATED_GPU)
  return tier == Tier::host || tier == Tier::device || tier == Tier::pinned;
#else
  return tier == Tier::host;
#endif
}

bool gpu_has_failed() {
#ifdef KOKKOS_ENABLE_CUDA
  const cudaError_t status = cudaStreamQuery(nullptr);
  return status != cudaSuccess && status != cudaErrorNotReady;
#else
  return false;
#endif
}

std::byte* kokkos_allocate(Tier tier, std::size_t bytes, const std::string& label) {
  void* data = nullptr;
  with_space(tier, [&](auto space) { data = space.allocate(label.c_str(), bytes); });
  return static_cast<std::byte*>(data);
}

void kokkos_free(Tier tier, std::byte* data, std::size_t bytes, const std::string& label) {
  // Kokkos ends the process where a GPU has failed. It is on its way out then, and has something to say first.
  if (tier != Tier::host && gpu_has_failed()) return;
  with_space(tier, [&](auto space) { space.deallocate(label.c_str(), data, bytes); });
}

void kokkos_note_taken(std::byte* data, std::size_t bytes, const std::string& label) {
  Kokkos::Tools::allocateData(Kokkos::Tools::make_space_handle(Kokkos::HostSpace::name()), label, data, bytes);
}

void kokkos_note_freed(std::byte* data, std::size_t bytes, const std::string& label) {
  Kokkos::Tools::deallocateData(Kokkos::Tools::make_space_handle(Kokkos::HostSpace::name()), label, data, bytes);
}

}  // namespace tessera
