// The timeline of the step that run.trace_step names: a file of each rank, and a table of rank 0.
#pragma once
#include <vector>

#include "schedule/trace/timeline_summary.hpp"
#include "topology/world.hpp"
#include "train/folder/run_folder.hpp"

namespace tessera {

class StepTrace {
 public:
  /// A run that begins behind the step that was to be traced says so.
  StepTrace(const World& world, const Deck& deck, RunFolder folder, std::int64_t first_step);
  /// Where the executor is to note the tasks of a step (0-based); null for a step that is not traced.
  Timeline* of(std::int64_t step) { return step + 1 == step_ ? &timeline_ : nullptr; }
  /// Collective, after each step. A traced one is written; the table to be shown is returned, "" for all other steps. Throws
  /// AgreedError(storage) on all ranks where one cannot write its file.
  std::string after(std::int64_t step, double seconds);

 private:
  UntracedRuns steps_before() const;
  const World& world_;
  RunFolder folder_;
  std::string device_;
  std::int64_t step_ = 0, first_step_ = 0;  ///< step_: 1-based, 0: none
  std::vector<double> before_;              ///< seconds of the latest steps before it
  Timeline timeline_;
};

}  // namespace tessera
