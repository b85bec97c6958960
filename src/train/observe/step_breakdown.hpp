// Where the time of steps goes, every run.breakdown_every steps: on the host means over all steps between, on GPUs the one step.
#pragma once
#include "train/observe/progress_log.hpp"

namespace tessera {

class StepBreakdown : public Observer {
 public:
  StepBreakdown(const RunParts& run, ProgressLog& progress);
  bool wants_timeline(std::int64_t done) const override;
  void phase_ends() override { memory_shown_ = false; }
  Verdict after(const StepEnd& end) override;

 private:
  const RunParts& run_;
  ProgressLog& progress_;
  bool graphs_;         ///< steps are graphs: those between are left alone
  Breakdown sum_ = {};  ///< since the last table
  double seconds_ = 0, data_seconds_ = 0;
  std::int64_t steps_ = 0;
  bool memory_shown_ = false;  ///< of the phase
};

/// Of a step with a breakdown: seconds a part by its name, those that compute did not hide; with `waits`, `data` and `host` they are the
/// step's.
io::NamedNumbers seconds_of_parts(const StepEnd& end);
/// Bytes that its tasks moved, by part.
io::NamedNumbers bytes_of_parts(const StepEnd& end);

}  // namespace tessera
