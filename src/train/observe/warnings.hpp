// Says what somebody should look at, on rank 0.
#pragma once
#include "train/observe/metrics_log.hpp"
#include "train/observe/progress_log.hpp"
#include "train/observe/warning_signs.hpp"

namespace tessera {

class Warnings : public Observer {
 public:
  Warnings(const RunParts& run, MetricsLog& metrics, ProgressLog& progress)
      : run_(run), metrics_(metrics), progress_(progress), signs_(steps_still_by_design(run.deck.learning_rate)) {}
  Verdict after(const StepEnd& end) override;
  /// The state of this step stands as a checkpoint, which took so long.
  void saved(std::int64_t step, double seconds);

 private:
  void name_stragglers(std::int64_t step);
  void say(std::int64_t step, const std::string& line);
  const RunParts& run_;
  MetricsLog& metrics_;
  ProgressLog& progress_;
  WarningSigns signs_;
  double seconds_ = 0;  ///< of a step, lately
};

}  // namespace tessera
