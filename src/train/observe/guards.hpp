// What a run does by itself about steps that are not as they should be: values that are no numbers, spikes of loss and norm. The judgement
// is the schedule's (kernels/step/guard.hpp), the same on all ranks; here it is said, and where a run cannot go on it ends or goes back.
#pragma once
#include "train/observe/progress_log.hpp"
#include "train/save/saving.hpp"

namespace tessera {

class Guards : public Observer {
 public:
  /// `saver` says where to begin again; what it has under way stands before the run ends.
  Guards(const RunParts& run, Saver& saver, ProgressLog& progress) : run_(run), saver_(saver), progress_(progress) {}
  /// AgreedError(numerics) where the run ends.
  Verdict after(const StepEnd& end) override;
  /// The same of a validation loss.
  void require_finite_evaluation(std::int64_t done, const StepReport& report);

 private:
  Verdict go_back(const StepEnd& end, std::string why);
  /// What was bad first, and on which rank. Collective.
  std::string diagnose(const StepEnd& end);
  void say(const StepEnd& end, const std::string& line);
  [[noreturn]] void end_run(const StepEnd& end, const std::string& found);

  const RunParts& run_;
  Saver& saver_;
  ProgressLog& progress_;
};

}  // namespace tessera
