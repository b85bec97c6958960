// The steps of a run, and those who look at each.
#pragma once
#include "train/observe/observers.hpp"

namespace tessera {

class StepLoop {
 public:
  /// Collective.
  explicit StepLoop(const RunParts& run);
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
  Observers observers_;
};

}  // namespace tessera
