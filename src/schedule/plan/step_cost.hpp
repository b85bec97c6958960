// What one optimizer step costs a rank, and what recompute gains and costs of it.
#pragma once
#include <string>

#include "schedule/build/builder.hpp"
#include "schedule/plan/memory_plan.hpp"

namespace tessera {

struct StepCost {
  std::int64_t tasks = 0;
  double flops = 0;         ///< of all passes
  double remade_flops = 0;  ///< those of them that make activations again
  double bytes_moved = 0;   ///< by collectives
};
StepCost step_cost(const Schedule& schedule);

/// Against the same step with activation.recompute = "none".
struct RecomputeGain {
  std::int64_t bytes_saved = 0;
  double flops_share = 0;  ///< FLOPs that are made again, of those of a step without
};
RecomputeGain recompute_gain(const BuildRequest& request, const Schedule& schedule, const MemoryPlan& plan);
/// "full, a kept stream every 2 layers: 101.37 GiB a rank saved for 24.2 % more FLOPs"
std::string describe_recompute(const BuildRequest& request, const RecomputeGain& gain);

}  // namespace tessera
