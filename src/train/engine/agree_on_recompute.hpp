// activation.recompute = "auto" when a run starts.
#pragma once
#include "schedule/plan/recompute_choice.hpp"
#include "topology/world.hpp"

namespace tessera {

/// What each stage makes again, the same on all ranks, for the least that any of them may take; nothing where the deck leaves nothing to
/// choose. Collective.
std::vector<RecomputeChoice> agree_on_recompute(const World& world, const BuildRequest& request, const MemoryLimits& here);

}  // namespace tessera
