#include "train/observe/guards.hpp"

#include <fmt/format.h>

#include "base/check.hpp"
#include "deck/ramp.hpp"
#include "train/observe/ledger.hpp"
#include "train/observe/loss_scale.hpp"

namespace tessera {
namespace {

/// "the loss is 7.31, 12.4 robust deviations above the median of the steps before"
std::string describe_spikes(const StepReport& report) {
  const auto one = [](const char* what, double value, float z) {
    return fmt::format("{} is {:.5g}, {:.1f} robust deviations above the median of the steps before", what, value, z);
  };
  std::string text;
  if (report.spikes & kernels::spike_of_loss) text = one("the loss", report.loss, report.loss_z);
  if (report.spikes & kernels::spike_of_norm)
    text += (text.empty() ? "" : ", and ") + one("the gradient norm", report.grad_norm, report.norm_z);
  return text;
}

/// The first rank's line that is not empty, with its place before it.
std::string first_line(const World& world, const std::string& mine) {
  const std::string line = mine.empty() ? "" : fmt::format("rank {} on {}: {}", world.rank(), world.place().host, mine);
  for (const std::string& of_rank : world.gather_text(line))
    if (!of_rank.empty()) return of_rank;
  return "";
}

}  // namespace

Verdict Guards::after(const StepEnd& end) {
  const StepReport& report = end.report;
  const SpikeMode spike = run_.deck.guards.spike;
  if (report.spikes != 0) {
    const std::string what = fmt::format("step {}: {}", end.done, describe_spikes(report));
    if (spike == SpikeMode::rollback) return go_back(end, what);
    if (report.passed_over)
      say(end, what + "; the step changes no weights (guards.spike)");
    else if (!report.limit)
      say(end, what);
  }
  const bool bad = report.spikes == 0 && (report.passed_over || report.not_finite) && !report.lowest;
  const std::string found = bad ? diagnose(end) : "";
  if (bad && report.passed_over)
    say(end,
        fmt::format("step {}: the loss or a gradient is not finite; the step changes no weights (guards.skip_limit). {}", end.done, found));
  if (!report.not_finite) return Verdict::go_on;
  if (spike == SpikeMode::rollback && !report.lowest)
    return go_back(end, fmt::format("step {}: the loss or a gradient is not finite. {}", end.done, found));
  end_run(end, found);
}

Verdict Guards::go_back(const StepEnd& end, std::string why) {
  run_.going_back = {.step = end.done, .why = std::move(why), .leaves_data_out = true};
  return Verdict::roll_back;
}

void Guards::say(const StepEnd& end, const std::string& line) {
  if (run_.world.rank() != 0) return;
  progress_.warn(line);
  run_.ledger.warned(end.done, line);
}

std::string Guards::diagnose(const StepEnd& end) {
  run_.position.turn_to("the search for what is not finite");
  const bool mine = run_.engine.own_sums().not_finite;
  const std::optional<Finding> finding = run_.engine.find_not_finite();  // settles a late update, which the state is looked at after
  if (const std::string state = first_line(run_.world, run_.engine.state_not_finite()); !state.empty())
    return fmt::format("Weights or optimizer state were wrong before the step: {}.", state);
  const std::int64_t end_of_step = run_.engine.run_values().sample_cursor,
                     begin = end_of_step - samples_of_step(run_.engine.planned().request.deck.batch);
  const std::string data =
      fmt::format("Weights and optimizer state are finite; the step took samples {} to {} of the run's order.", begin, end_of_step - 1);
  if (const std::string task = first_line(run_.world, finding ? fmt::format("`{}` writes {}, whose element {} is {}", finding->task,
                                                                            finding->value, finding->element, finding->text)
                                                              : "");
      !task.empty())
    return fmt::format("{} First on {}.", data, task);
  const std::string seen = first_line(run_.world, mine ? "it has found a value that is not finite" : "");
  if (end.report.overflow) return fmt::format("{} A gradient exceeds the range of exact sums.", data);
  return fmt::format("{} Computed again, the step is finite: a processor or memory has made an error ({}).", data,
                     seen.empty() ? "no rank has found where" : seen);
}

void Guards::end_run(const StepEnd& end, const std::string& found) {
  saver_.finish();
  const std::string& last = saver_.last();
  const std::string again =
      last.empty() ? "and the new keys; there is no checkpoint to start from."
                   : fmt::format("run.resume={} and the new keys, or an earlier checkpoint if that one has the fault already.", last);
  const std::int64_t limit = run_.deck.guards.skip_limit;
  const std::string before = limit > 0 ? fmt::format(", after {} skipped ones (guards.skip_limit)", limit) : "";
  // The sums leave out what is not a number, so loss and norm would say nothing here.
  run_.world.together([&] {
    if (end.report.lowest)
      fail(ExitCode::numerics,
           "step {}: the loss or a gradient is not finite {}. That is another run, with its own folder: the same command with "
           "run.output_dir=NEW {}",
           end.done, lowest_scale_advice(run_.deck.precision.loss_scale, end.report.loss_scale), again);
    fail(ExitCode::numerics,
         "step {}: {}{}; the weights are those from before this step. {}{}Look at the data of this step, or change the training, for "
         "example optimizer.learning_rate or learning_rate.warmup_steps. That is another run, with its own folder: the same command with "
         "run.output_dir=NEW {}",
         end.done,
         end.report.spikes     ? describe_spikes(end.report)
         : end.report.overflow ? "a gradient exceeds the range of exact sums (run.reproducible)"
                               : "the loss or a gradient is not finite",
         before, found, found.empty() ? "" : " ", again);
  });
  throw Error(ExitCode::internal, "together has thrown");
}

void Guards::require_finite_evaluation(std::int64_t done, const StepReport& report) {
  if (!report.not_finite) return;
  saver_.finish();
  const std::string& last = saver_.last();
  run_.world.together([&] {
    fail(ExitCode::numerics,
         "step {}: the validation loss is not finite. Look at {}, or change the training, for example optimizer.learning_rate. The weights "
         "of this step are not saved; {}",
         done, run_.deck.data.validation,
         last.empty() ? "there is no checkpoint before it." : fmt::format("the checkpoint before it is {}.", last));
  });
}

}  // namespace tessera
