// How long a run is, how long its learning rate rises and falls, and what goes with that.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "deck/rules/draft.hpp"
#include "deck/schema/value.hpp"
#include "optimizer/texts/table.hpp"

namespace tessera {
namespace {

/// Who asks for a few steps on a command line need not take the file's schedule apart.
void shorten_phases(Draft& draft) {
  const auto overridden = [&](std::string_view key) { return draft.entry(key).given && draft.entry(key).place.line == 0; };
  LearningRateKeys& lr = draft.deck.learning_rate;
  const std::int64_t steps = draft.deck.run.steps;
  if (!overridden("run.steps") || !draft.good({"learning_rate.warmup_steps", "learning_rate.decay_steps"})) return;
  const auto shorten = [&](std::string_view key, std::int64_t& phase, std::int64_t most) {
    if (phase <= most || overridden(key)) return;
    draft.resolved.push_back(fmt::format("{} = {} (the override run.steps = {} is too short for {})", key, most, steps, phase));
    phase = most;
  };
  shorten("learning_rate.warmup_steps", lr.warmup_steps, steps);
  shorten("learning_rate.decay_steps", lr.decay_steps, std::max<std::int64_t>(0, steps - lr.warmup_steps));
}

void check_phases(Draft& draft) {
  shorten_phases(draft);
  const LearningRateKeys& lr = draft.deck.learning_rate;
  const std::int64_t steps = draft.deck.run.steps;
  if (!draft.good({"learning_rate.warmup_steps"})) return;
  if (lr.warmup_steps > steps)
    return draft.fault(
        {"learning_rate.warmup_steps", "run.steps", "run.epochs"},
        fmt::format("learning_rate.warmup_steps {} is more than run.steps {}; set it to at most {}", lr.warmup_steps, steps, steps));
  if (!draft.good({"learning_rate.schedule", "learning_rate.decay_steps"}) || lr.schedule != RateSchedule::wsd || lr.decay_steps == 0)
    return;
  if (lr.warmup_steps + lr.decay_steps > steps)
    draft.fault({"learning_rate.decay_steps", "learning_rate.warmup_steps", "learning_rate.warmup_ratio", "run.steps", "run.epochs"},
                fmt::format("learning_rate.warmup_steps {} + learning_rate.decay_steps {} is more than run.steps {}; set decay_steps to at "
                            "most {}",
                            lr.warmup_steps, lr.decay_steps, steps, steps - lr.warmup_steps));
}

void check_trace(Draft& draft) {
  const RunKeys& run = draft.deck.run;
  if (!draft.good({"run.trace"})) return;
  const std::optional<StepRange> range = step_range(run.trace);
  if (!range)
    draft.fault(
        {"run.trace"},
        fmt::format(
            "run.trace {} is neither a step nor a range of steps; write 12, or \"3..5\" with the smaller step first, or 0 for no timeline",
            toml_string(run.trace)));
  else if (range->last > run.steps)
    draft.fault(
        {"run.trace", "run.steps", "run.epochs"},
        fmt::format(
            "run.trace {} is more than run.steps {}, so the run never reaches that step; set it to at most {}, or to 0 for no timeline",
            range->last, run.steps, run.steps));
}

/// A share of the steps, rounded up: not where it is a whole number but for the rounding of its factors.
std::int64_t share_of(std::int64_t steps, double ratio) {
  return std::min(steps, static_cast<std::int64_t>(std::ceil(static_cast<double>(steps) * ratio * (1 - 1e-12))));
}

}  // namespace

std::optional<StepRange> step_range(const std::string& text) {
  const auto number = [](std::string_view digits) -> std::optional<std::int64_t> {
    constexpr std::size_t most_digits = 12;  // of the largest run.steps
    if (digits.empty() || digits.size() > most_digits || digits.find_first_not_of("0123456789") != digits.npos) return std::nullopt;
    return std::stoll(std::string(digits));
  };
  const std::size_t dots = text.find("..");
  if (dots == text.npos) {
    const auto step = number(text);
    return step ? std::optional(StepRange{*step, *step}) : std::nullopt;
  }
  const auto first = number(std::string_view(text).substr(0, dots)), last = number(std::string_view(text).substr(dots + 2));
  if (!first || !last || *first < 1 || *last < *first) return std::nullopt;
  return StepRange{*first, *last};
}

void check_length(Draft& draft) {
  check_schedule(draft);
  if (!draft.good({"run.steps", "run.epochs"})) return;
  const RunKeys& run = draft.deck.run;
  if (run.steps > 0 && run.epochs > 0) draft.choose_one("run.steps", "run.epochs", "the length of the run");
  if (run.steps == 0 && run.epochs == 0)
    draft.fault({"run.steps"},
                "is required and missing: optimizer steps of the whole run; add `steps = ...` under [run], or `epochs = ...`, passes over "
                "the data");
}

void settle_steps(Draft& draft, const CountSteps& count) {
  RunKeys& run = draft.deck.run;
  LearningRateKeys& lr = draft.deck.learning_rate;
  if (!draft.faults.empty()) return;
  if (run.epochs > 0) {
    const CountedSteps counted = count ? count(draft.deck) : CountedSteps{0, "the start counts the samples of data.train"};
    if (counted.steps == 0) {
      draft.resolved.push_back(fmt::format("run.steps = \"auto\" (run.epochs = {:g}: {})", run.epochs, counted.why));
      return;
    }
    draft.resolved.push_back(fmt::format("run.steps = {} (run.epochs = {:g}: {})", counted.steps, run.epochs, counted.why));
    run.steps = counted.steps, run.epochs = 0;
  }
  if (lr.warmup_ratio == 0) return;
  lr.warmup_steps = share_of(run.steps, lr.warmup_ratio);
  draft.resolved.push_back(fmt::format("learning_rate.warmup_steps = {} (warmup_ratio {:g} x run.steps {}, rounded up)", lr.warmup_steps,
                                       lr.warmup_ratio, run.steps));
  lr.warmup_ratio = 0;
}

void check_steps(Draft& draft) {
  if (!draft.good({"run.steps", "run.epochs"}) || draft.deck.run.steps == 0) return;
  check_phases(draft);
  check_cycled_momentum(draft);
  check_trace(draft);
  check_run_size(draft);
  const std::vector<RampPhase>& ramp = draft.deck.batch.ramp;
  const std::int64_t steps = draft.deck.run.steps;
  OptimizerKeys& optimizer = draft.deck.optimizer;
  if (draft.good({"optimizer.type", "optimizer.freeze_step"}))
    optimizer.warms_up = optimizer_named(optimizer.type).sends_signs && optimizer.freeze_step >= steps;
  if (draft.faults.empty() && !ramp.empty() && steps <= ramp.back().until_step)
    draft.resolved.push_back(
        fmt::format("note: the run ends at step {}, and the last phase of batch.ramp lasts until step {}", steps, ramp.back().until_step));
}

}  // namespace tessera
