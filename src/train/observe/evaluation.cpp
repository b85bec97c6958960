#include "train/observe/evaluation.hpp"

#include <fmt/format.h>

#include "base/clock.hpp"
#include "topology/failure/signals.hpp"
#include "train/observe/ledger.hpp"

namespace tessera {
namespace {

/// What the evaluation of this step is among those before: ", the best so far".
std::string describe(const EvaluationRecord& record, const EvaluateKeys& keys, std::int64_t step) {
  if (record.evaluations == 1) return "";
  std::string text =
      record.best_step == step ? ", the best so far" : fmt::format("; the best is {:.4f}, of step {}", record.best, record.best_step);
  if (keys.patience > 0 && record.without > 0)
    text += fmt::format("; {} of {} evaluations without an improvement", record.without, keys.patience);
  return text;
}

}  // namespace

Verdict Evaluation::after(const StepEnd& end) {
  if (!run_.deck.evaluate.due(end.done, run_.deck.run.steps)) return Verdict::go_on;
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
  EvaluationRecord& record = run_.engine.evaluations();
  const EvaluateKeys& keys = run_.deck.evaluate;
  const bool comparable = record.take(end.done, evaluated.loss, evaluated.targets, keys.min_improvement);
  metrics_.record({{"step", end.done}, {"val_loss", evaluated.loss}, {"best_val_loss", record.best}});
  run_.ledger.evaluated(end.done, now_seconds() - begin, evaluated.loss);
  if (!comparable)
    progress_.note(
        fmt::format("step {}: this evaluation has other targets than those before, and is the first that later ones are compared "
                    "with",
                    end.done));
  progress_.note(fmt::format("step {}: validation loss {:.4f}{}", end.done, evaluated.loss, describe(record, keys, end.done)));
  if (!record.exhausts(keys.patience) || end.done == run_.deck.run.steps) return Verdict::go_on;
  const std::string why = fmt::format(
      "step {}: the last {} evaluations brought no improvement{} (evaluate.patience), and the run ends here. The best was that of step {}, "
      "{:.4f}{}",
      end.done, record.without, keys.min_improvement > 0 ? fmt::format(" of more than {}", keys.min_improvement) : "", record.best_step,
      record.best, run_.deck.checkpoint.keep_best ? fmt::format(": {}/best", run_.folder.checkpoints()) : "");
  progress_.note(why);
  run_.ledger.ended_early(end.done, why);
  return Verdict::enough;
}

}  // namespace tessera
