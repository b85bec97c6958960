// Whether a rank's plan fits into the machine that it is on.
#pragma once
#include "schedule/plan/limits.hpp"
#include "schedule/plan/run_plan.hpp"

namespace tessera {

/// Ranks that take as much of the same memory, and have not done so yet.
struct Sharing {
  int node = 1, gpu = 1;
};

/// What the deck allows (stated_limits), and what there is: the node's free memory over its ranks where memory.host says nothing, and
/// the free memory of this process's GPU over the ranks that share it, with room for what comes after.
MemoryLimits limits_here(const Deck& deck, int ranks, const Sharing& sharing = {});

/// Throws Error(memory) where the plan does not fit: what lacks, and then `advice`, or the changes of the deck with which it fits.
void require_fits(const RunPlan& plan, const MemoryLimits& limits, const std::string& advice = {});

}  // namespace tessera
