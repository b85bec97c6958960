// Saves what is due after a step.
#pragma once
#include "train/observe/metrics_log.hpp"
#include "train/observe/progress_log.hpp"
#include "train/observe/warnings.hpp"
#include "train/save/resume_proof.hpp"
#include "train/save/saving.hpp"

namespace tessera {

class Checkpoints : public Observer {
 public:
  Checkpoints(const RunParts& run, MetricsLog& metrics, ProgressLog& progress, Warnings& warnings);
  /// Before the first step: saves what a start before was killed before it had saved.
  void catch_up();
  void phase_ends() override { saver_.finish(); }
  Verdict after(const StepEnd& end) override;
  void finish(std::int64_t) override { saver_.finish(); }
  Saver& saver() { return saver_; }

 private:
  void stands(const Saved& saved);
  const RunParts& run_;
  MetricsLog& metrics_;
  ProgressLog& progress_;
  Warnings& warnings_;
  std::int64_t done_;
  Saver saver_;
};

}  // namespace tessera
