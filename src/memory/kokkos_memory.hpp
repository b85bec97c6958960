// Allocation in Kokkos' memory spaces, behind a header without Kokkos and fmt: with CUDA the file behind it passes through nvcc, which
// understands neither quickly.
#pragma once
#include <cstddef>
#include <string>

#include "memory/tier.hpp"

namespace tessera {

/// Whether this build has a memory space for the tier (shared and nvme are not Kokkos').
bool kokkos_has(Tier tier);
/// Whether a kernel has ended in a fault that no later call of this process to the GPU gets past. Does not wait.
bool gpu_has_failed();
/// Kokkos' tools see the label. Throws std::exception with Kokkos' reason.
std::byte* kokkos_allocate(Tier tier, std::size_t bytes, const std::string& label);
void kokkos_free(Tier tier, std::byte* data, std::size_t bytes, const std::string& label);
/// Tells Kokkos' tools of host memory that comes from elsewhere, and when it goes.
void kokkos_note_taken(std::byte* data, std::size_t bytes, const std::string& label);
void kokkos_note_freed(std::byte* data, std::size_t bytes, const std::string& label);

}  // namespace tessera
