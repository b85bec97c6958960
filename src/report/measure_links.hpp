// Rates between memories: of ranks, of device and host, of disks.
#pragma once
#include "machine/profile.hpp"
#include "report/bench.hpp"

namespace tessera {

/// Collectives between the ranks of this node and, where there are several nodes, across them; nothing for a rank alone. `bytes`: what all
/// end with.
void measure_collectives(const Bench& bench, std::int64_t bytes, MachineProfile& profile);
/// Copies between the memory that kernels use and that of the host.
void measure_transfer(Bench& bench, std::int64_t bytes, MachineProfile& profile);
/// On rank 0: a file over these folders, written and read back. Throws Error(storage) where that cannot be.
void measure_disks(const World& world, const std::vector<std::string>& folders, std::int64_t bytes, MachineProfile& profile);

}  // namespace tessera
