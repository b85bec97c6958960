// Which keys a learning-rate schedule reads, and what goes with them.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "deck/rules/draft.hpp"
#include "deck/schema/schema.hpp"
#include "optimizer/texts/table.hpp"

namespace tessera {
namespace {

struct ScheduleKeys {
  RateSchedule schedule;
  std::vector<std::string_view> keys;  // leaves of [learning_rate], or a section of their own
};

const std::vector<ScheduleKeys> schedule_keys = {
    {RateSchedule::cosine, {"warmup_steps", "warmup_ratio", "warmup_type", "min_ratio"}},
    {RateSchedule::linear, {"warmup_steps", "warmup_ratio", "warmup_type", "min_ratio"}},
    {RateSchedule::constant, {"warmup_steps", "warmup_ratio", "warmup_type"}},
    {RateSchedule::wsd, {"warmup_steps", "warmup_ratio", "warmup_type", "decay_steps", "decay_type", "min_ratio"}},
    {RateSchedule::warmup_lr, {"warmup_steps", "warmup_ratio", "warmup_type", "warmup_min_lr"}},
    {RateSchedule::warmup_decay_lr, {"warmup_steps", "warmup_ratio", "warmup_type", "warmup_min_lr"}},
    {RateSchedule::warmup_cosine_lr, {"warmup_steps", "warmup_ratio", "warmup_type", "warmup_min_ratio", "min_ratio"}},
    {RateSchedule::one_cycle, {"one_cycle"}},
    {RateSchedule::lr_range_test, {"lr_range_test"}},
};

constexpr std::string_view section = "learning_rate.", choice = "learning_rate.schedule";

bool reads(const ScheduleKeys& row, std::string_view key) {
  const std::string_view leaf = key.substr(section.size());
  return std::ranges::find(row.keys, leaf.substr(0, leaf.find('.'))) != row.keys.end();
}

/// "cosine", "linear" or "wsd": the schedules that read a key.
std::string readers_of(std::string_view key) {
  std::vector<std::string> words;
  for (const ScheduleKeys& row : schedule_keys)
    if (reads(row, key)) words.push_back(toml_string(word_of(row.schedule)));
  std::string text = words.back();
  for (std::size_t i = words.size() - 1; i-- > 0;) text = fmt::format("{}{}{}", words[i], i + 2 == words.size() ? " or " : ", ", text);
  return text;
}

/// A key of another schedule.
void check_readers(Draft& draft) {
  const RateSchedule schedule = draft.deck.learning_rate.schedule;
  const ScheduleKeys& row = *std::ranges::find(schedule_keys, schedule, &ScheduleKeys::schedule);
  for (const Key& key : deck_keys())
    if (key.name.starts_with(section) && key.name != choice && !reads(row, key.name) && draft.differs(key.name))
      draft.idle(key.name, choice,
                 fmt::format("has no effect with learning_rate.schedule = {}; leave it out, or set {}", toml_string(word_of(schedule)),
                             readers_of(key.name)));
}

bool of_deepspeed(RateSchedule schedule) {
  return schedule == RateSchedule::warmup_lr || schedule == RateSchedule::warmup_decay_lr || schedule == RateSchedule::warmup_cosine_lr;
}

void check_warmup(Draft& draft) {
  if (!draft.good({"learning_rate.warmup_steps", "learning_rate.warmup_type", "learning_rate.warmup_ratio"})) return;
  const LearningRateKeys& lr = draft.deck.learning_rate;
  if (lr.warmup_steps > 0 && lr.warmup_ratio > 0)
    draft.choose_one("learning_rate.warmup_steps", "learning_rate.warmup_ratio", "the length of the warmup");
  if (lr.warmup_steps == 0 && lr.warmup_ratio == 0 && draft.differs("learning_rate.warmup_type") && !of_deepspeed(lr.schedule))
    draft.resolved.push_back("note: learning_rate.warmup_type has no effect with learning_rate.warmup_steps = 0");
}

void check_wsd(Draft& draft) {
  if (!draft.good({"learning_rate.decay_steps"})) return;
  const LearningRateKeys& lr = draft.deck.learning_rate;
  if (lr.schedule == RateSchedule::wsd && lr.decay_steps == 0)
    draft.fault({"learning_rate.decay_steps", choice},
                "learning_rate.schedule = \"wsd\" needs learning_rate.decay_steps, the steps of the decay at the end of the run; "
                "10 to 20 % of run.steps is usual");
}

void check_one_cycle(Draft& draft) {
  const OneCycleKeys& cycle = draft.deck.learning_rate.one_cycle;
  constexpr std::string_view momentum = "learning_rate.one_cycle.cycle_momentum", size = "learning_rate.one_cycle.decay_step_size";
  if (draft.good({momentum}) && !cycle.cycle_momentum)
    for (const std::string_view key :
         {"learning_rate.one_cycle.min_mom", "learning_rate.one_cycle.max_mom", "learning_rate.one_cycle.decay_mom_rate"})
      if (draft.differs(key))
        draft.idle(key, momentum, fmt::format("has no effect with {} = false; leave it out, or set that to true", momentum));
  if (draft.good({momentum}) && cycle.cycle_momentum)
    for (const std::string_view key : {"optimizer.beta1", "optimizer.beta2"})
      if (draft.differs(key))
        draft.idle(
            key, choice,
            fmt::format("has no effect with {} = true, which gives beta1 between min_mom and max_mom, and beta2 = 0.99; leave it out, "
                        "or set {} = false",
                        momentum, momentum));
  if (draft.good({momentum, "optimizer.type"}) && cycle.cycle_momentum) {
    const Optimizer& optimizer = optimizer_named(draft.deck.optimizer.type);
    for (const std::string_view key :
         {"learning_rate.one_cycle.min_mom", "learning_rate.one_cycle.max_mom", "learning_rate.one_cycle.decay_mom_rate"})
      if (draft.differs(key) && std::ranges::find(optimizer.keys, "beta1") == optimizer.keys.end())
        draft.idle(key, "optimizer.type",
                   fmt::format("has no effect with optimizer.type = \"{}\", which has no betas; leave it out", optimizer.name));
  }
  if (draft.good({size}) && cycle.decay_step_size == 0)
    for (const std::string_view key : {"learning_rate.one_cycle.decay_lr_rate", "learning_rate.one_cycle.decay_mom_rate"})
      if (draft.differs(key)) draft.idle(key, size, fmt::format("has no effect with {} = 0; set that, or leave it out", size));
}

}  // namespace

void check_schedule(Draft& draft) {
  if (!draft.good({choice})) return check_warmup(draft);
  check_readers(draft);
  check_warmup(draft);
  check_wsd(draft);
  if (draft.deck.learning_rate.schedule == RateSchedule::one_cycle) check_one_cycle(draft);
}

void check_cycled_momentum(Draft& draft) {
  const LearningRateKeys& lr = draft.deck.learning_rate;
  const OneCycleKeys& cycle = lr.one_cycle;
  constexpr std::string_view rate = "learning_rate.one_cycle.decay_mom_rate";
  if (!draft.good({choice, rate, "learning_rate.one_cycle.max_mom", "learning_rate.one_cycle.decay_step_size"})) return;
  if (lr.schedule != RateSchedule::one_cycle || !cycle.cycle_momentum || cycle.decay_step_size == 0) return;
  const std::int64_t after = draft.deck.run.steps - 1 - cycle.first_step_size - cycle.second_step_size;
  const double intervals = static_cast<double>(after) / static_cast<double>(cycle.decay_step_size);
  const double last = cycle.max_mom * (1 + cycle.decay_mom_rate * intervals);
  if (after <= 0 || last < 1) return;
  draft.fault({rate, "learning_rate.one_cycle.max_mom", "learning_rate.one_cycle.decay_step_size", "run.steps", "run.epochs"},
              fmt::format("the momentum grows to {:.3g} by step {}, and must stay below 1; set decay_mom_rate below {:.3g}", last,
                          draft.deck.run.steps, (1 / cycle.max_mom - 1) / intervals));
}

}  // namespace tessera
