// What `tessera plan` says of the stages of a pipeline.
#pragma once
#include <vector>
#include "base/json.hpp"

#include "schedule/plan/limits.hpp"
#include "schedule/plan/run_plan.hpp"

namespace tessera {

/// The first rank of a stage of a pipeline, which stands for the stage.
struct StagePlan {
  int rank = 0;
  RunPlan plan;
  std::int64_t micro_batches = 0;  ///< in flight
  std::int64_t activations = 0;    ///< bytes, at most
};

std::vector<StagePlan> plan_stages(const BuildRequest& like);

Json stages_json(const BuildRequest& request, const std::vector<StagePlan>& stages);
/// Where stages differ: what each has, and what is in flight there. `request` is of the rank that is shown.
void print_stages(const BuildRequest& request, const std::vector<StagePlan>& stages);
/// Whether those of all stages fit.
bool stages_fit(const std::vector<StagePlan>& stages, const MemoryLimits& limits);
/// The shown rank may fit where another stage's does not: throws Error(memory) that names the first.
void require_stages_fit(const std::vector<StagePlan>& stages, const MemoryLimits& limits);

}  // namespace tessera
