// The validation loss, every evaluate.every steps and at the run's end.
#pragma once
#include "train/observe/finite_steps.hpp"
#include "train/observe/metrics_log.hpp"
#include "train/observe/progress_log.hpp"

namespace tessera {

class Evaluation : public Observer {
 public:
  Evaluation(const RunParts& run, FiniteSteps& finite, MetricsLog& metrics, ProgressLog& progress)
      : run_(run), finite_(finite), metrics_(metrics), progress_(progress) {}
  Verdict after(const StepEnd& end) override;

 private:
  const RunParts& run_;
  FiniteSteps& finite_;
  MetricsLog& metrics_;
  ProgressLog& progress_;
};

}  // namespace tessera
