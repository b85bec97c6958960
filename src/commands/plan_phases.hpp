// What `tessera plan` says of the phases of batch.ramp.
#pragma once
#include <functional>
#include <optional>
#include <vector>
#include "base/json.hpp"

#include "commands/plan_stages.hpp"
#include "schedule/plan/limits.hpp"
#include "schedule/plan/run_plan.hpp"

namespace tessera {

/// A phase before the last, on one rank.
struct PhasePlan {
  std::int64_t until_step = 0;
  RunPlan plan;
  std::vector<StagePlan> stages = {};  ///< of a pipeline
  std::vector<Shortfall> lacking = {};
  std::optional<double> seconds = {};  ///< of a step, as predicted
};

/// `settle` settles what the deck leaves to the memory that there is.
std::vector<PhasePlan> plan_phases(const Deck& deck, const BuildRequest& last, const MemoryLimits& limits,
                                   const std::function<void(BuildRequest&)>& settle);
/// What a run allocates whose last phase needs `last`, by tier.
TierBytes room_of(const std::vector<PhasePlan>& phases, const TierBytes& last);

Json phases_json(const std::vector<PhasePlan>& phases);
/// A line each; none where all steps are of one phase.
void print_phases(const std::vector<PhasePlan>& phases, const TierBytes& last);
bool phases_fit(const std::vector<PhasePlan>& phases, const MemoryLimits& limits);
/// Throws Error(memory) that names the first phase that does not fit.
void require_phases_fit(const std::vector<PhasePlan>& phases, const MemoryLimits& limits);

}  // namespace tessera
