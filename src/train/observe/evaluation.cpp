#include "train/observe/evaluation.hpp"

#include <fmt/format.h>

#include <fstream>
#include <optional>

#include "base/clock.hpp"
#include "base/json.hpp"
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

/// What the rows have of a step: its loss, and its validation loss. A folder of another run's checkpoint has no row of it.
struct StepRows {
  bool made = false, evaluated = false;
};

StepRows rows_of(const std::string& path, std::int64_t step) {
  std::ifstream in(path);
  StepRows rows;
  for (std::string line; std::getline(in, line);) {
    const std::optional<Json> row = Json::try_parse(line);
    if (!row || !row->is_object() || !row->contains("step") || !row->at("step").is_number_integer()) continue;
    if (row->at("step").get<std::int64_t>() != step) continue;
    rows.made |= row->contains("loss"), rows.evaluated |= row->contains("val_loss");
  }
  return rows;
}

}  // namespace

bool Evaluation::due(std::int64_t done) const { return done > 0 && run_.deck.evaluate.due(done, run_.deck.run.steps); }

Verdict Evaluation::catch_up(std::int64_t done) {
  if (!due(done)) return Verdict::go_on;
  const StepRows rows = run_.claim ? rows_of(run_.folder.metrics(), done) : StepRows();
  const bool lacks_row = run_.world.sum(std::int64_t{rows.made && !rows.evaluated}) > 0;
  // A start may have made it and been killed before the next save, so that no checkpoint knows of it.
  const bool reads_record = run_.deck.checkpoint.keep_best || run_.deck.evaluate.patience > 0;
  const bool forgotten = reads_record && run_.engine.evaluations().last_step != done && run_.world.sum(std::int64_t{rows.evaluated}) > 0;
  return lacks_row || forgotten ? evaluate(done, lacks_row) : Verdict::go_on;
}

Verdict Evaluation::after(const StepEnd& end) {
  if (!due(end.done)) return Verdict::go_on;
  // Of the last step nothing is left to do but to save.
  const Verdict verdict = evaluate(end.done);
  return end.done == run_.deck.run.steps ? Verdict::go_on : verdict;
}

Verdict Evaluation::evaluate(std::int64_t done, bool in_rows) {
  const double begin = now_seconds();
  run_.position.turn_to("an evaluation");
  const std::optional<StepReport> whole = run_.feed.evaluate(stop_requested);
  if (!whole) {
    const std::string line = fmt::format(
        "step {}: the evaluation was interrupted, because the run was asked to stop; the same command repeats it when the run resumes",
        done);
    progress_.note(line);
    return Verdict::stop;
  }
  const StepReport& evaluated = *whole;
  guards_.require_finite_evaluation(done, evaluated);
  EvaluationRecord& record = run_.engine.evaluations();
  const EvaluateKeys& keys = run_.deck.evaluate;
  const bool comparable = record.take(done, evaluated.loss, evaluated.targets, keys.min_improvement);
  if (in_rows) metrics_.record({{"step", done}, {"val_loss", evaluated.loss}, {"best_val_loss", record.best}});
  run_.ledger.evaluated(done, now_seconds() - begin, evaluated.loss);
  if (!comparable)
    progress_.note(fmt::format("step {}: this evaluation has other targets than earlier ones; later ones are compared with it", done));
  progress_.note(fmt::format("step {}: validation loss {:.4f}{}", done, evaluated.loss, describe(record, keys, done)));
  if (!record.exhausts(keys.patience) || done == run_.deck.run.steps) return Verdict::go_on;
  const std::string why = fmt::format(
      "step {}: the last {} evaluations brought no improvement{} (evaluate.patience), so the run ends here. The best was step {}, {:.4f}{}",
      done, record.without, keys.min_improvement > 0 ? fmt::format(" of more than {}", keys.min_improvement) : "", record.best_step,
      record.best, run_.deck.checkpoint.keep_best ? fmt::format(": {}/best", run_.folder.checkpoints()) : "");
  progress_.note(why);
  run_.ledger.ended_early(done, why);
  return Verdict::enough;
}

}  // namespace tessera
