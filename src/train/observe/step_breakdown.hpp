// Where the time of steps goes, every run.breakdown_every steps: on the host of all steps between, on GPUs of the one step. metrics.jsonl
// has it of each; the log has tables of means, each of twice as many as the one before, so that a long run's log is still one of steps.
#pragma once
#include "train/observe/progress_log.hpp"
#include "train/observe/rank_pace.hpp"

namespace tessera {

class StepBreakdown : public Observer {
 public:
  StepBreakdown(const RunParts& run, ProgressLog& progress);
  bool wants_timeline(std::int64_t done) const override;
  void phase_ends() override { memory_shown_ = false; }
  void measure(StepEnd& end) override;
  Verdict after(const StepEnd& end) override;
  /// A table of the steps since the last one.
  void finish(std::int64_t done) override;

 private:
  /// After so many steps, where a measurement is due: how long each rank computes in a step. On rank 0 of several.
  io::NamedNumbers rank_seconds(std::int64_t done);
  void print(std::int64_t done);
  const RunParts& run_;
  ProgressLog& progress_;
  bool graphs_;  ///< steps are graphs: those between are left alone
  RankPace ranks_;
  Breakdown sum_ = {};  ///< since the last table
  double seconds_ = 0, data_seconds_ = 0;
  std::int64_t steps_ = 0, first_ = 0, last_ = 0;
  std::int64_t intervals_ = 0, next_table_ = 1;
  bool memory_shown_ = false;  ///< of the phase
};

/// Of a step with a breakdown: seconds a part by its name, those that compute did not hide; with `waits`, `data` and `host` they are the
/// step's.
io::NamedNumbers seconds_of_parts(const StepEnd& end);
/// Bytes that its tasks moved, by part.
io::NamedNumbers bytes_of_parts(const StepEnd& end);

}  // namespace tessera
