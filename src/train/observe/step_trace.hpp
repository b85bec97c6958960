// The timelines of the steps that run.trace names: a file of each rank, one of all together, and a table of rank 0.
#pragma once
#include <vector>

#include "machine/profile.hpp"
#include "schedule/trace/chrome_trace.hpp"
#include "train/observe/progress_log.hpp"

namespace tessera {

class StepTrace : public Observer {
 public:
  /// A run that begins behind the steps that were to be traced says so. AgreedError(usage) where run.machine cannot be read, or knows
  /// nothing of what the plan does.
  StepTrace(const RunParts& run, ProgressLog& progress);
  bool wants_timeline(std::int64_t done) const override { return range_.holds(done + 1); }
  /// A traced step is written, and its table shown. AgreedError(storage) on all ranks where one cannot write its file.
  Verdict after(const StepEnd& end) override;
  /// Joins what there is, where the run ends among its traced steps.
  void finish(std::int64_t done) override;

 private:
  UntracedRuns steps_before() const;
  void write_traces(const Timeline& timeline, std::int64_t step);
  /// Rank 0's, of what it runs now.
  void predict_here();
  void join();
  const RunParts& run_;
  ProgressLog& progress_;
  StepRange range_;
  std::vector<double> before_;                  ///< seconds of the latest steps before them
  std::optional<double> zero_ = {};             ///< of the clock of all files, on this rank's
  std::vector<TracedStep> steps_;               ///< that are written and not joined
  std::optional<MachineProfile> machine_ = {};  ///< rank 0's
  std::string predicted_ = {};                  ///< its trace
  std::size_t predicted_phase_ = 0;
};

}  // namespace tessera
