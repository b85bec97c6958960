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

/// Whether the rows have the step, and no validation loss of it. A folder of another run's checkpoint has no row of it.
bool lacks_evaluation(const std::string& path, std::int64_t step) {
  std::ifstream in(path);
  bool made = false, evaluated = false;
  for (std::string line; std::getline(in, line);) {
    const std::optional<Json> row = Json::try_parse(line);
    if (!row || !row->is_object() || !row->contains("step") || !row->at("step").is_number_integer()) continue;
    if (row->at("step").get<std::int64_t>() != step) continue;
    made |= row->contains("loss"), evaluated |= row->contains("val_loss");
  }
  return made && !evaluated;
}

}  // namespace

bool Evaluation::due(std::int64_t done) const {
  const std::int64_t every = run_.deck.evaluate.every;
  return every > 0 && done > 0 && (done % every == 0 || done == run_.deck.run.steps);
}

Verdict Evaluation::catch_up(std::int64_t done) {
  if (!due(done)) return Verdict::go_on;
  const bool lacks = run_.claim && lacks_evaluation(run_.folder.metrics(), done);
  return run_.world.sum(std::int64_t{lacks}) > 0 ? evaluate(done) : Verdict::go_on;
}

Verdict Evaluation::after(const StepEnd& end) {
  if (!due(end.done)) return Verdict::go_on;
  // Of the last step nothing is left to do but to save.
  const Verdict verdict = evaluate(end.done);
  return end.done == run_.deck.run.steps ? Verdict::go_on : verdict;
}

Verdict Evaluation::evaluate(std::int64_t done) {
  const double begin = now_seconds();
  run_.position.turn_to("an evaluation");
  const std::optional<StepReport> whole = run_.feed.evaluate(stop_requested);
  if (!whole) {
    const std::string line = fmt::format(
        "step {}: the evaluation was broken off, since the run was asked to stop; the same command makes it when the run goes on", done);
    progress_.note(line);
    return Verdict::stop;
  }
  const StepReport& evaluated = *whole;
  guards_.require_finite_evaluation(done, evaluated);
  metrics_.record({{"step", done}, {"val_loss", evaluated.loss}});
  run_.ledger.evaluated(done, now_seconds() - begin, evaluated.loss);
  progress_.note(fmt::format("step {}: validation loss {:.4f}", done, evaluated.loss));
  return Verdict::go_on;
}

}  // namespace tessera
