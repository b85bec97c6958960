// What a training step of a plan comes to on a machine, and how that is told.
#pragma once
#include "base/json.hpp"

#include "schedule/plan/run_plan.hpp"
#include "schedule/simulate/placement.hpp"
#include "schedule/simulate/simulate.hpp"
#include "schedule/trace/timeline_summary.hpp"

namespace tessera {

struct Prediction {
  Simulation step;
  double tokens_per_second = 0;  ///< of all ranks
  double mfu_causal = 0,
         mfu_full = 0;                ///< FLOPs of the model, with attention's half or whole, over the peak of all ranks; see FlopsPerToken
  double most_tokens_per_second = 0;  ///< at which causal MFU would be 1: nothing on this machine exceeds it
  std::int64_t tokens = 0;            ///< of a step
  int ranks = 1, nodes = 1;
  double bubble_seconds = 0;  ///< of the step: what this stage waits for others of a pipeline
  double room_seconds = 0;    ///< of the step: by which products are longer that leave multiprocessors to collectives
  int collective_blocks = 0;  ///< so many
};

/// The first rank's step, since all ranks run the same. Throws Error(usage) where the profile does not know what the plan does.
Prediction predict(const BuildRequest& request, const Schedule& schedule, const MemoryPlan& memory, const MachineProfile& machine,
                   const Placement& placement, bool timeline = false);
/// With the seconds of its tasks, where they are known already.
Prediction predict(const BuildRequest& request, const Schedule& schedule, const MemoryPlan& memory, const TaskSeconds& seconds,
                   const MachineProfile& machine, const Placement& placement, bool timeline = false);

/// A step of the stage `shown` of a pipeline, played together with the others: `stages` has one rank of each. What it waits for them beyond
/// what it would take alone is the bubble. `progress` as play_together's.
Prediction predict_stage(std::size_t shown, std::span<const RunPlan> stages, const MachineProfile& machine, const Placement& placement,
                         bool timeline = false, const std::function<void(double)>& progress = {});

/// "14.855 s", "20.861 ms"
std::string time_text(double seconds);

/// Lines for people, each after a line break.
std::string print_prediction(const Prediction& prediction, std::size_t most_critical = 10);
Json prediction_json(const Prediction& prediction, std::size_t most_critical = 10);

}  // namespace tessera
