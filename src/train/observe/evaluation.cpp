#include "train/observe/evaluation.hpp"

#include <fmt/format.h>

#include "base/clock.hpp"
#include "train/observe/ledger.hpp"

namespace tessera {

Verdict Evaluation::after(const StepEnd& end) {
  const std::int64_t every = run_.deck.evaluate.every;
  if (every == 0 || (end.done % every != 0 && end.done != run_.deck.run.steps)) return Verdict::go_on;
  const double begin = now_seconds();
  const StepReport evaluated = run_.feed.evaluate();
  guards_.require_finite_evaluation(end.done, evaluated);
  metrics_.record({{"step", end.done}, {"val_loss", evaluated.loss}});
  run_.ledger.evaluated(end.done, now_seconds() - begin, evaluated.loss);
  progress_.note(fmt::format("step {}: validation loss {:.4f}", end.done, evaluated.loss));
  return Verdict::go_on;
}

}  // namespace tessera
