// How much of each tier lives while a step does what it does: planned figures, which are those that a run allocates.
#pragma once
#include <string>

#include "memory/tier.hpp"
#include "schedule/trace/breakdown.hpp"

namespace tessera {

/// Of each part of a training step the most that lives at one of its tasks, what lives through the whole run included. 0: no task is of it.
using MemoryByPart = std::array<TierBytes, time_part_count>;
MemoryByPart memory_by_part(const Schedule& schedule);

/// A line a part, a column a tier that holds anything; each line after a line break. `room`: of the arenas.
std::string print_memory_by_part(const MemoryByPart& memory, const TierBytes& room);

}  // namespace tessera
