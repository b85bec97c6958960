// With run.profile: how far the kernels of the steps are from their floors, on rank 0, told when no step follows.
#pragma once
#include "schedule/trace/kernel_profile.hpp"
#include "train/observe/progress_log.hpp"

namespace tessera {

class StepProfile : public Observer {
 public:
  /// Measures the rate of a copy, on all ranks together.
  StepProfile(const RunParts& run, ProgressLog& progress);
  bool wants_timeline(std::int64_t) const override { return on_; }
  void before(std::int64_t done) override;
  Verdict after(const StepEnd& end) override;
  /// The table, and profile.json in the run's folder. AgreedError(storage) where that cannot be written.
  void finish(std::int64_t done) override;

 private:
  const RunParts& run_;
  ProgressLog& progress_;
  bool on_;
  double stream_ = 0;  ///< bytes/s
  KernelProfile profile_;
};

}  // namespace tessera
