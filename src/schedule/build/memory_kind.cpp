#include "schedule/build/memory_kind.hpp"

namespace tessera {

const char* name_of(MemoryKind kind) {
  static constexpr const char* names[memory_kinds] = {"device", "host", "pinned", "nvme"};
  return names[static_cast<std::size_t>(kind)];
}

std::int64_t bytes_of(const TierBytes& tiers, MemoryKind kind) {
  const auto of = [&](Tier tier) { return tiers[static_cast<std::size_t>(tier)]; };
  switch (kind) {
    case MemoryKind::device:
      return of(Tier::device);
    case MemoryKind::host:
      return of(Tier::host) + of(Tier::shared) + of(Tier::pinned) + of(Tier::copies);
    case MemoryKind::pinned:
      return of(Tier::pinned);
    case MemoryKind::nvme:
      return of(Tier::nvme);
  }
  return 0;
}

std::int64_t memory_bytes(const TierBytes& tiers) { return bytes_of(tiers, MemoryKind::device) + bytes_of(tiers, MemoryKind::host); }

MemoryKind kernel_memory(const Deck& deck) {
  const bool offloads = deck.zero.offload_optimizer.device != OffloadDevice::none || deck.activation.offload != OffloadDevice::none;
  return deck.run.device == RunDevice::cuda || offloads ? MemoryKind::device : MemoryKind::host;
}

}  // namespace tessera
