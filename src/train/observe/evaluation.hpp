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

 private:
  const RunParts& run_;
  Guards& guards_;
  MetricsLog& metrics_;
  ProgressLog& progress_;
};

}  // namespace tessera
