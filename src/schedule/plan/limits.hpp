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

/// What a rank of a launch has of NCCL, at most: a communicator for each lane and group of ranks, and for each lane and neighbour in a
/// pipeline. All-to-alls, rotations and sums in order connect every pair of ranks.
struct Communication {
  int communicators = 0;
  bool pairs = false;
};
/// Of the rank that has most. By the mesh alone: none where it does not divide the ranks, which others say.
Communication communication_of(const Deck& deck, int ranks);

/// What a GPU holds beside the plan. None of it has been measured here: these are allowances, and a run prints what it finds
/// (DeviceOverhead) and plans with what is free once NCCL has connected.
struct GpuReserve {
  std::int64_t context = std::int64_t{1} << 29;  ///< CUDA's context and our kernels
  std::int64_t communicator = std::int64_t{700}
                              << 20;               ///< NCCL's issue 964: 544 to 688 MB each on 4 A100; 864: 1.6 GB for one, 6 GB for three
  std::int64_t pairs = std::int64_t{3} << 30;      ///< NCCL's issue 1685: 3.3 GB more with an all-to-all on 8 H100
  std::int64_t libraries = std::int64_t{1} << 30;  ///< modules and buffers of cuBLASLt and cuDNN, graphs: taken after the plan's memory
  std::int64_t nccl(const Communication& c) const { return c.communicators * communicator + (c.pairs ? pairs : 0); }
  std::int64_t bytes(const Communication& c) const { return context + nccl(c) + libraries; }
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
