// What a rank's plan may take: memory of device and host, of that what is pinned, and disks, each with a limit that the deck states or a
// machine has.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "memory/tier.hpp"
#include "schedule/build/memory_kind.hpp"

namespace tessera {

/// What a GPU holds beside the plan. None of it has been measured: these are allowances, and a run prints what it finds (DeviceOverhead).
struct GpuReserve {
  std::int64_t context = std::int64_t{1} << 29;  ///< CUDA's context and our kernels
  std::int64_t nccl = std::int64_t{1} << 30;  ///< two communicators: 4 MiB a channel, peer and direction (NCCL_BUFFSIZE), a few hundred MiB
  std::int64_t libraries = std::int64_t{1} << 30;  ///< modules and buffers of cuBLASLt and cuDNN, graphs: taken after the plan's memory
  std::int64_t bytes(int ranks) const { return context + (ranks > 1 ? nccl : 0) + libraries; }
};

struct MemoryLimit {
  std::int64_t bytes = 0;  ///< that a rank's plan may take
  std::string source;      ///< "memory.device (from the deck)"
};
/// By kind; nothing where nothing is known.
using MemoryLimits = std::array<std::optional<MemoryLimit>, memory_kinds>;

/// What the deck says: memory.device is a GPU's memory, of which the reserve is not the plan's, or on host ranks what they compute in;
/// memory.host is that of the host, memory.pinned of what of it is pinned.
MemoryLimits stated_limits(const Deck& deck, int ranks);
/// For activation.recompute = "auto", which takes all that it is given: of what a host was found to have free, where the deck states
/// nothing, an eighth is left to libraries, caches of files and neighbours.
MemoryLimits with_room_left(MemoryLimits found, const MemoryLimits& stated);
/// The smaller of two limits.
void lower(std::optional<MemoryLimit>& limit, const MemoryLimit& other);

struct Shortfall {
  MemoryKind kind;
  std::int64_t needed = 0;
  MemoryLimit limit;
  /// "the plan needs 9.00 MiB on each rank and memory.host is 8.00 MiB (from the deck): 1.00 MiB too much"
  std::string text() const;
};
/// Of each kind that does not fit.
std::vector<Shortfall> shortfalls(const TierBytes& needed, const MemoryLimits& limits);
/// Of a plan of the deck. On host ranks whose deck does not say what kernels have of the memory, what they use is the host's like the rest.
std::vector<Shortfall> shortfalls(const Deck& deck, TierBytes needed, const MemoryLimits& limits);
/// A sentence of each.
std::string print_shortfalls(const std::vector<Shortfall>& lacking);

}  // namespace tessera
