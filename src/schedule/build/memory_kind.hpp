// Kinds of memory, as limits know them, and which of them kernels work in.
#pragma once
#include <cstdint>

#include "deck/deck.hpp"
#include "memory/tier.hpp"

namespace tessera {

/// Tiers that count together: device, which is a GPU's memory or, where state is offloaded on host ranks, what kernels use of the host's;
/// host, shared, pinned and copies; pinned, which is a part of the host's; nvme, which is no memory but runs out like it.
enum class MemoryKind : std::uint8_t { device, host, pinned, nvme };
inline constexpr int memory_kinds = 4;
inline constexpr MemoryKind all_memory_kinds[memory_kinds] = {MemoryKind::device, MemoryKind::host, MemoryKind::pinned, MemoryKind::nvme};
const char* name_of(MemoryKind);
std::int64_t bytes_of(const TierBytes& tiers, MemoryKind kind);
/// Of all tiers that are memory.
std::int64_t memory_bytes(const TierBytes& tiers);
/// Where kernels work.
MemoryKind kernel_memory(const Deck& deck);

}  // namespace tessera
