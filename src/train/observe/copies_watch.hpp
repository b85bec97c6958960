// Compares what several ranks keep copies of, every guards.digest_every steps and before each save, so that a run goes back to what is
// right: a copy that differs was changed by no task.
#pragma once
#include "train/engine/copies.hpp"
#include "train/observe/progress_log.hpp"
#include "train/save/saving.hpp"

namespace tessera {

class CopiesWatch : public Observer {
 public:
  CopiesWatch(const RunParts& run, const Saver& saver, ProgressLog& progress);
  Verdict after(const StepEnd& end) override;

 private:
  void say_who_was_wrong(std::int64_t step, const std::vector<CopyDigest>& right);
  const RunParts& run_;
  const Saver& saver_;
  ProgressLog& progress_;
  std::int64_t suspected_step_ = 0;
  std::vector<CopyDigest> suspected_;  ///< this rank's copies after that step, when they differed
};

}  // namespace tessera
