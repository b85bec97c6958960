// The validation loss, every evaluate.every steps and at the run's end.
#pragma once
#include "train/observe/guards.hpp"
#include "train/observe/metrics_log.hpp"
#include "train/observe/progress_log.hpp"

namespace tessera {

class Evaluation : public Observer {
 public:
  Evaluation(const RunParts& run, Guards& guards, MetricsLog& metrics, ProgressLog& progress)
      : run_(run), guards_(guards), metrics_(metrics), progress_(progress) {}
  Verdict after(const StepEnd& end) override;
  /// At the start of a run that goes on after `done` steps: the validation loss that was due then, where a stop has broken it off.
  /// Collective. `stop`, where another stop does that again.
  Verdict catch_up(std::int64_t done);

 private:
  bool due(std::int64_t done) const;
  /// What to do then: `stop`, if a stop has broken it off. `in_rows`: metrics.jsonl has no validation loss of the step yet.
  Verdict evaluate(std::int64_t done, bool in_rows = true);

  const RunParts& run_;
  Guards& guards_;
  MetricsLog& metrics_;
  ProgressLog& progress_;
};

}  // namespace tessera
