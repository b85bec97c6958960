#include "train/run/step_loop.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "deck/ramp.hpp"
#include "schedule/build/micro_batches.hpp"
#include "topology/failure/signals.hpp"
#include "train/folder/way_back.hpp"
#include "train/observe/checkpoints.hpp"
#include "train/observe/evaluation.hpp"
#include "train/observe/ledger.hpp"
#include "train/run/banner.hpp"

namespace tessera {
namespace {

/// Seconds of a step's work that waits for no other rank, by kind. Of a GPU's steps they are known where one has a breakdown.
std::map<std::string, double> own_seconds(const StepEnd& end, const LaneTimes& times, bool on_gpu) {
  std::map<std::string, double> seconds;
  if (end.breakdown) {
    for (const TimePart part : {TimePart::forward, TimePart::backward, TimePart::head, TimePart::optimizer, TimePart::other})
      seconds[time_parts[static_cast<std::size_t>(part)].name] = end.breakdown->of(part).exposed;
  } else if (!on_gpu) {
    for (const LaneInfo& lane : lanes)
      if (const double busy = times.busy[static_cast<std::size_t>(lane.lane)]; !lane.collective && busy > 0) seconds[lane.name] = busy;
  }
  if (!seconds.empty()) seconds["data"] = end.data_seconds;
  return seconds;
}

}  // namespace

StepLoop::StepLoop(const RunParts& run)
    : run_(run), observers_(run, [this](std::int64_t done, StepFigures& of) {
        double data_seconds = 0;
        const StepReport report = make_step(done, data_seconds);
        of = figures(done + 1, report, 1);
        return !report.not_finite;
      }) {}

std::optional<ExitCode> StepLoop::run() {
  const std::int64_t steps = run_.deck.run.steps;
  std::int64_t done = run_.first_step;
  if (done >= steps) info("all {} steps are done already; raise run.steps (or run.epochs) to continue", steps);
  Verdict verdict = Verdict::go_on;
  if (run_.engine.evaluations().exhausts(run_.deck.evaluate.patience) && done < steps) {
    info("the run ended after step {}, because its evaluations did not improve. Raise evaluate.patience to continue", done);
    verdict = Verdict::enough;
  } else if (done < steps) {
    run_.ledger.training();
  }
  observers_.get<Checkpoints>().catch_up();
  const WatchdogKeys& keys = run_.deck.watchdog;
  const StillnessWatch watch(run_.world, {.on = keys.action != WatchdogAction::off,
                                          .ends = keys.action == WatchdogAction::end,
                                          .limit_seconds = static_cast<double>(keys.limit),
                                          .most_seconds = static_cast<double>(run_.deck.topology.collective_timeout) / 2});
  if (verdict == Verdict::go_on) verdict = observers_.get<Evaluation>().catch_up(done);
  for (; done < steps && verdict == Verdict::go_on; ++done) {
    cross_border(done);
    leave_out(done);
    verdict = step_after(done);
  }
  if (verdict == Verdict::roll_back) {
    for (Observer* observer : observers_.in_order()) observer->phase_ends();  // what is under way is of a step before
    observers_.get<ProgressLog>().finish(done);
    return {};
  }
  for (Observer* observer : observers_.in_order() | std::views::reverse) observer->finish(done);
  if (verdict == Verdict::go_on || verdict == Verdict::enough) return ExitCode::ok;
  info("stopped by {} after saving; start the same command again to continue",
       stop_signal() ? signal_name(stop_signal()) : "a signal to another rank");
  return ExitCode::interrupted;
}

Verdict StepLoop::step_after(std::int64_t done) {
  Timeline timeline;
  const bool noted = std::ranges::any_of(observers_.in_order(), [&](const Observer* observer) { return observer->wants_timeline(done); });
  double data_seconds = 0;
  const double begin = now_seconds();
  const StepReport report = make_step(done, data_seconds, noted ? &timeline : nullptr);
  const double seconds = now_seconds() - begin;
  StepFigures seen = figures(done + 1, report, seconds);
  if (!report.not_finite && run_.yardstick.remeasure(seen.mfu.causal)) {
    seen = figures(done + 1, report, seconds);
    observers_.get<ProgressLog>().note(fmt::format("a product reaches {:.0f} GFLOP/s now: the machine was busy when it was measured before",
                                                   run_.yardstick.rate() * 1e-9));
  }
  const bool ends = done + 1 == run_.deck.run.steps;
  StepEnd end{.done = done + 1,
              .report = report,
              .figures = seen,
              .data_seconds = data_seconds,
              .timeline = noted ? &timeline : nullptr,
              .router = run_.engine.router_figures(),
              .verdict = report.stop != 0 && !ends ? Verdict::stop : Verdict::go_on};
  for (Observer* observer : observers_.in_order()) observer->measure(end);
  run_.position.end_step(seconds, own_seconds(end, run_.engine.times(), run_.deck.run.device == RunDevice::cuda));
  for (Observer* observer : observers_.in_order()) {
    end.last = ends || end.verdict == Verdict::enough || end.verdict == Verdict::stop;
    end.verdict = std::max(end.verdict, observer->after(end));
    if (end.verdict == Verdict::roll_back) break;
  }
  return end.verdict;
}

void StepLoop::enter_phase_after(std::int64_t done) {
  const std::size_t phase = phase_after(run_.deck, done);
  if (phase == run_.engine.phase()) return;
  run_.position.turn_to("the change to another phase");
  run_.world.together([] {});  // what a rank reads of another's memory it has read
  run_.engine.enter(phase);
}

void StepLoop::cross_border(std::int64_t done) {
  if (phase_after(run_.deck, done) == run_.engine.phase()) return;
  for (Observer* observer : observers_.in_order()) observer->phase_ends();
  const double begin = now_seconds();
  enter_phase_after(done);
  const Deck& deck = run_.engine.planned().request.deck;
  const double seconds = now_seconds() - begin;
  const std::string what = describe_batch(deck, run_.engine.data().size) + describe_warmup(deck);
  observers_.get<ProgressLog>().note(
      fmt::format("phase {} starts after step {} (in {:.2f} s): {}", run_.engine.phase() + 1, done, seconds, what));
  run_.ledger.entered_phase(done, run_.engine.phase(), seconds, what);
}

void StepLoop::leave_out(std::int64_t done) {
  const std::int64_t samples = left_out_by(run_.left_out, done) - run_.engine.run_values().samples_left_out;
  if (samples > 0) run_.engine.leave_out(samples);
}

StepReport StepLoop::make_step(std::int64_t done, double& data_seconds, Timeline* timeline) {
  run_.position.begin_step(done);
  enter_phase_after(done);
  run_.position.turn_to("the reading of a batch");
  const double begin = now_seconds();
  run_.feed.read(done);
  data_seconds = now_seconds() - begin;
  for (Observer* observer : observers_.in_order()) observer->before(done);
  run_.position.turn_to("the step's end");
  return run_.engine.step({.stop = stop_requested(), .timeline = timeline, .counts = run_.feed.counts()});
}

StepFigures StepLoop::figures(std::int64_t done, const StepReport& report, double seconds) const {
  const BatchKeys& batch = run_.engine.planned().request.deck.batch;
  // A processor computes padding too.
  const double tokens = static_cast<double>(batch.global * batch.sequence_length), rate = tokens / seconds;
  const double length =
      run_.deck.data.document_mask ? static_cast<double>(report.document_squares) / tokens : static_cast<double>(batch.sequence_length);
  return {.step = done,
          .loss = report.loss,
          .grad_norm = report.grad_norm,
          .learning_rate = run_.engine.learning_rate(),
          .tokens_per_second = report.tokens / seconds,
          .seconds = seconds,
          .mfu = {.full = run_.flops.full(length) * rate / run_.yardstick.rate(),
                  .causal = run_.flops.causal(length) * rate / run_.yardstick.rate(),
                  .of_peak = run_.yardstick.is_peak()}};
}

}  // namespace tessera
