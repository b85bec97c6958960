// How long a run is, how long its learning rate rises and falls, and what goes with that.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "deck/draft.hpp"

namespace tessera {
namespace {

/// Both keys say the same thing: `other` may not be given beside `key`. An override of one drops what the file says in the other.
void choose_one(Draft& draft, std::string_view key, std::string_view other, std::string_view what) {
  const auto overridden = [&](std::string_view k) { return draft.entry(k).given && draft.entry(k).place.line == 0; };
  const bool first = overridden(key) && !overridden(other);
  draft.idle(first ? other : key, first ? key : other, fmt::format("{} and {} both say {}; leave one of the two out", key, other, what));
}

void check_warmup(Draft& draft) {
  if (!draft.good({"learning_rate.warmup_steps", "learning_rate.warmup_type", "learning_rate.warmup_ratio"})) return;
  const LearningRateKeys& lr = draft.deck.learning_rate;
  if (lr.warmup_steps > 0 && lr.warmup_ratio > 0)
    choose_one(draft, "learning_rate.warmup_steps", "learning_rate.warmup_ratio", "how long the warmup is");
  // An imported scheduler has a shape, whatever its steps.
  if (lr.warmup_steps == 0 && lr.warmup_ratio == 0 && draft.differs("learning_rate.warmup_type"))
    draft.resolved.push_back("note: learning_rate.warmup_type has no effect with learning_rate.warmup_steps = 0");
}

void check_schedule(Draft& draft) {
  const LearningRateKeys& lr = draft.deck.learning_rate;
  if (!draft.good({"learning_rate.schedule"})) return;
  if (lr.schedule == RateSchedule::constant && draft.differs("learning_rate.min_ratio")) {
    draft.idle("learning_rate.min_ratio", "learning_rate.schedule",
               "has no effect with learning_rate.schedule = \"constant\"; leave it out or choose another schedule");
  }
  if (!draft.good({"learning_rate.decay_steps"})) return;
  if (lr.schedule != RateSchedule::wsd && lr.decay_steps > 0) {
    draft.idle("learning_rate.decay_steps", "learning_rate.schedule",
               fmt::format("has no effect with learning_rate.schedule = {}, which decays from the end of "
                           "the warmup to the last step; leave it out or set \"wsd\"",
                           toml_string(word_of(lr.schedule))));
  } else if (lr.schedule == RateSchedule::wsd && lr.decay_steps == 0) {
    draft.fault({"learning_rate.decay_steps", "learning_rate.schedule"},
                "learning_rate.schedule = \"wsd\" needs learning_rate.decay_steps, the steps of the decay at the end of the run; "
                "10 to 20 % of run.steps is usual");
  }
}

void check_phases(Draft& draft) {
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
  if (draft.good({"run.trace_step"}) && run.trace_step > run.steps)
    draft.fault({"run.trace_step", "run.steps", "run.epochs"},
                fmt::format("run.trace_step {} is more than run.steps {}, so that step never comes; set it to at most {}, or to 0 for no "
                            "timeline",
                            run.trace_step, run.steps, run.steps));
}

/// A share of the steps, rounded up: not where it is a whole number but for the rounding of its factors.
std::int64_t share_of(std::int64_t steps, double ratio) {
  return std::min(steps, static_cast<std::int64_t>(std::ceil(static_cast<double>(steps) * ratio * (1 - 1e-12))));
}

}  // namespace

void check_length(Draft& draft) {
  check_warmup(draft);
  check_schedule(draft);
  if (!draft.good({"run.steps", "run.epochs"})) return;
  const RunKeys& run = draft.deck.run;
  if (run.steps > 0 && run.epochs > 0) choose_one(draft, "run.steps", "run.epochs", "how long the run is");
  if (run.steps == 0 && run.epochs == 0)
    draft.fault({"run.steps"},
                "is required and missing: Optimizer steps of the whole run; add `steps = ...` under [run], or `epochs = ...`, passes over "
                "the data");
}

void settle_steps(Draft& draft, const CountSteps& count) {
  RunKeys& run = draft.deck.run;
  LearningRateKeys& lr = draft.deck.learning_rate;
  if (!draft.faults.empty()) return;
  if (run.epochs > 0) {
    const CountedSteps counted = count ? count(draft.deck) : CountedSteps{0, "a start counts the samples of data.train"};
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
  check_trace(draft);
  check_run_size(draft);
}

}  // namespace tessera
