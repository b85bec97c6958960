#include "train/observe/evaluation.hpp"

#include <fmt/format.h>

#include "base/clock.hpp"
#include "topology/failure/signals.hpp"
#include "train/observe/ledger.hpp"

namespace tessera {

Verdict Evaluation::after(const StepEnd& end) {
  const std::int64_t every = run_.deck.evaluate.every;
  if (every == 0 || (end.done % every != 0 && end.done != run_.deck.run.steps)) return Verdict::go_on;
  const double begin = now_seconds();
  run_.position.turn_to("an evaluation");
  const std::optional<StepReport> whole = run_.feed.evaluate(stop_requested);
  if (!whole) {
    const std::string line = fmt::format(
        "step {}: the evaluation was broken off, since the run was asked to stop; this step has no validation loss (tessera evaluate "
        "CHECKPOINT --data {} measures it)",
        end.done, run_.deck.data.validation);
    progress_.note(line);
    // Of the last step nothing is left to do but to save.
    return end.done == run_.deck.run.steps ? Verdict::go_on : Verdict::stop;
  }
  const StepReport& evaluated = *whole;
  guards_.require_finite_evaluation(end.done, evaluated);
  metrics_.record({{"step", end.done}, {"val_loss", evaluated.loss}});
  run_.ledger.evaluated(end.done, now_seconds() - begin, evaluated.loss);
  progress_.note(fmt::format("step {}: validation loss {:.4f}", end.done, evaluated.loss));
  return Verdict::go_on;
}

}  // namespace tessera
