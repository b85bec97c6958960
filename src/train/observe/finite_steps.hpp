// Ends a run whose loss, gradient or validation loss is no number, with what to do.
#pragma once
#include "train/observe/observer.hpp"
#include "train/save/saving.hpp"

namespace tessera {

class FiniteSteps : public Observer {
 public:
  /// `saver` says where to begin again; what it has under way stands before the run ends.
  FiniteSteps(const RunParts& run, Saver& saver) : run_(run), saver_(saver) {}
  /// AgreedError(numerics).
  Verdict after(const StepEnd& end) override;
  /// The same of a validation loss.
  void require_finite_evaluation(std::int64_t done, const StepReport& report);

 private:
  const RunParts& run_;
  Saver& saver_;
};

}  // namespace tessera
