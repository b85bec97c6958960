// Compares the first steps of a run that goes on with those of the run that saved, and leaves figures for the next
// (checkpoint.verify_resume).
#pragma once
#include <functional>

#include "train/observe/progress_log.hpp"
#include "train/save/resume_proof.hpp"

namespace tessera {

class ProofOfSteps : public Observer {
 public:
  /// `another` makes the step after so many, and leaves its figures; false where it is not finite.
  ProofOfSteps(const RunParts& run, ProgressLog& progress, std::function<bool(std::int64_t done, StepFigures& figures)> another)
      : run_(run), progress_(progress), another_(std::move(another)) {}
  Verdict after(const StepEnd& end) override;
  /// Makes the steps that a run which goes on from here must make too. Their results are not kept.
  void finish(std::int64_t done) override;

 private:
  void compare(const StepFigures& figures);
  const RunParts& run_;
  ProgressLog& progress_;
  std::function<bool(std::int64_t, StepFigures&)> another_;
};

}  // namespace tessera
