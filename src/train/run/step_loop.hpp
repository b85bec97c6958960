// The steps of a run, and those who look at each.
#pragma once
#include <array>

#include "train/observe/checkpoints.hpp"
#include "train/observe/copies_watch.hpp"
#include "train/observe/evaluation.hpp"
#include "train/observe/exposition.hpp"
#include "train/observe/guards.hpp"
#include "train/observe/metrics_log.hpp"
#include "train/observe/neighbour_copies.hpp"
#include "train/observe/progress_log.hpp"
#include "train/observe/proof_of_steps.hpp"
#include "train/observe/replays.hpp"
#include "train/observe/samples.hpp"
#include "train/observe/stalls.hpp"
#include "train/observe/step_breakdown.hpp"
#include "train/observe/step_profile.hpp"
#include "train/observe/step_trace.hpp"
#include "train/observe/warnings.hpp"

namespace tessera {

class StepLoop {
 public:
  /// Collective. `checkpoint`: what the run goes on from, "" for none; `data`, what it is trained on, are rank 0's.
  StepLoop(const RunParts& run, ResumeProof& proof, const std::string& checkpoint, const std::vector<io::CheckpointData>& data);
  /// Makes all that are left, and says how the run ended: ok, or interrupted; none where it is to go back (RunParts::going_back).
  std::optional<ExitCode> run();

 private:
  /// Where another phase begins after so many steps, goes on in it. No save may be under way.
  void enter_phase_after(std::int64_t done);
  void cross_border(std::int64_t done);
  /// After so many steps, what an earlier way back has left out there.
  void leave_out(std::int64_t done);
  /// Reads a batch, which takes `data_seconds`, and makes the step after `done`.
  StepReport make_step(std::int64_t done, double& data_seconds, Timeline* timeline = nullptr);
  StepFigures figures(std::int64_t done, const StepReport& report, double seconds) const;
  /// A step, and what all observers make of it.
  Verdict step_after(std::int64_t done);

  const RunParts& run_;
  Exposition exposition_;
  MetricsLog metrics_;
  ProgressLog progress_;
  StepTrace trace_;
  Stalls stalls_;
  StepBreakdown breakdown_;
  StepProfile profile_;
  Warnings warnings_;
  Checkpoints checkpoints_;
  Guards guards_;
  Replays replays_;
  CopiesWatch copies_;
  ProofOfSteps proof_;
  Evaluation evaluation_;
  Samples samples_;
  NeighbourCopies neighbours_;
  std::array<Observer*, 17> observers_;
};

}  // namespace tessera
