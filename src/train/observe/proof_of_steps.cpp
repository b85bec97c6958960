#include "train/observe/proof_of_steps.hpp"

#include <fmt/format.h>

namespace tessera {

Verdict ProofOfSteps::after(const StepEnd& end) {
  compare(end.figures);
  return Verdict::go_on;
}

void ProofOfSteps::compare(const StepFigures& figures) {
  if (const std::string proven = run_.proof.after(figures, [this] { return run_.engine.digest_of_state(run_.world); }); !proven.empty())
    progress_.note(proven);
}

void ProofOfSteps::finish(std::int64_t done) {
  if (!run_.proof.on() || done == run_.first_step) return;
  for (std::int64_t step = done; step < done + ResumeProof::steps; ++step) {
    StepFigures figures;
    if (!another_(step, figures))
      return progress_.note(fmt::format("step {} is not finite, so its figures are not stored with the last save", step + 1));
    compare(figures);
  }
  progress_.note(
      fmt::format("made steps {} to {} for checkpoint.verify_resume; their results are not kept", done + 1, done + ResumeProof::steps));
}

}  // namespace tessera
