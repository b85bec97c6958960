#include "train/observe/finite_steps.hpp"

#include <fmt/format.h>

#include "base/check.hpp"
#include "train/observe/loss_scale.hpp"

namespace tessera {

Verdict FiniteSteps::after(const StepEnd& end) {
  if (!end.report.not_finite) return Verdict::go_on;
  saver_.finish();
  const std::string& last = saver_.last();
  const std::string again = last.empty() ? "and the new keys; there is no checkpoint to begin from."
                                         : fmt::format(
                                               "run.resume={} and the new keys, or an earlier checkpoint where that one has gone "
                                               "wrong already.",
                                               last);
  // The sums leave out what is not a number, so loss and norm would say nothing here.
  run_.world.together([&] {
    if (end.report.lowest)
      fail(ExitCode::numerics,
           "step {}: the loss or a gradient is not finite {}. That makes another run, with a folder of its own: the same command with "
           "run.output_dir=NEW {}",
           end.done, lowest_scale_advice(run_.deck.precision.loss_scale, end.report.loss_scale), again);
    fail(ExitCode::numerics,
         "step {}: {}; weights were left as they were before this step. Look at the data of this step, or change what the model is "
         "trained "
         "with, for example optimizer.learning_rate or learning_rate.warmup_steps. That makes another run, with a folder of its own: the "
         "same command with run.output_dir=NEW {}",
         end.done,
         end.report.overflow ? "a gradient exceeds the range of exact sums (run.reproducible)" : "the loss or a gradient is not finite",
         again);
  });
  return Verdict::stop;
}

void FiniteSteps::require_finite_evaluation(std::int64_t done, const StepReport& report) {
  if (!report.not_finite) return;
  saver_.finish();
  const std::string& last = saver_.last();
  run_.world.together([&] {
    fail(ExitCode::numerics,
         "step {}: the validation loss is not finite. Look at {}, or change what the model is trained with, for example "
         "optimizer.learning_rate. The weights of this step are not saved; {}",
         done, run_.deck.data.validation,
         last.empty() ? "there is no checkpoint before it." : fmt::format("the checkpoint before it is {}.", last));
  });
}

}  // namespace tessera
