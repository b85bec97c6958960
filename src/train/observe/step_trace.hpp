// The timeline of the step that run.trace_step names: a file of each rank, and a table of rank 0.
#pragma once
#include <vector>

#include "schedule/trace/timeline_summary.hpp"
#include "train/observe/progress_log.hpp"

namespace tessera {

class StepTrace : public Observer {
 public:
  /// A run that begins behind the step that was to be traced says so.
  StepTrace(const RunParts& run, ProgressLog& progress);
  bool wants_timeline(std::int64_t done) const override { return done + 1 == step_; }
  /// A traced step is written, and its table shown. AgreedError(storage) on all ranks where one cannot write its file.
  Verdict after(const StepEnd& end) override;

 private:
  UntracedRuns steps_before() const;
  void write_traces(const Timeline& timeline);
  const RunParts& run_;
  ProgressLog& progress_;
  std::int64_t step_ = 0;       ///< 1-based, 0: none
  std::vector<double> before_;  ///< seconds of the latest steps before it
};

}  // namespace tessera
