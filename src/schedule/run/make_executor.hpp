// The executor of a backend.
#pragma once
#include <memory>

#include "schedule/run/executor.hpp"
#include "schedule/run/operations.hpp"

namespace tessera {

/// Where a host's lanes run: on threads where this rank has a core to spare for them. `cores` is what it computes with.
LaneMode lane_mode(const Deck& deck, int ranks, int cores);

/// `backend` says whose kernels run; on a GPU the executor makes the lanes' streams. `mode` is for host threads, `graphs` for GPUs.
std::unique_ptr<Executor> make_executor(const Schedule& schedule, const MemoryPlan& plan, std::array<std::byte*, tier_count> bases,
                                        LaneMode mode, GraphMode graphs, TaskBackend backend);

}  // namespace tessera
