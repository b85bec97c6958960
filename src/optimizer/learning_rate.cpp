#include "optimizer/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/check.hpp"
#include "optimizer/schedules.hpp"
#include "optimizer/texts/table.hpp"

namespace tessera {
namespace {

struct ScheduleRow {
  RateSchedule schedule;
  double (*rate)(const schedules::Asked&);
  std::optional<schedules::Betas> (*betas)(const schedules::Asked&) = nullptr;  // of one that cycles the momentum too
};

constexpr ScheduleRow schedule_rows[] = {
    {RateSchedule::cosine, schedules::cosine},
    {RateSchedule::linear, schedules::linear},
    {RateSchedule::constant, schedules::constant},
    {RateSchedule::wsd, schedules::wsd},
    {RateSchedule::warmup_lr, schedules::warmup_lr},
    {RateSchedule::warmup_decay_lr, schedules::warmup_decay_lr},
    {RateSchedule::warmup_cosine_lr, schedules::warmup_cosine_lr},
    {RateSchedule::one_cycle, schedules::one_cycle, schedules::one_cycle_betas},
    {RateSchedule::lr_range_test, schedules::lr_range_test},
};
static_assert(std::size(schedule_rows) == enum_words<RateSchedule>.size(), "each schedule has a row");

const ScheduleRow& row_of(RateSchedule schedule) {
  const auto row = std::ranges::find(schedule_rows, schedule, &ScheduleRow::schedule);
  TESSERA_REQUIRE(row != std::end(schedule_rows), "learning_rate.schedule {}", static_cast<int>(schedule));
  return *row;
}

}  // namespace

double learning_rate_at(const LearningRateKeys& keys, double peak, std::int64_t steps, std::int64_t updates) {
  return row_of(keys.schedule).rate({.keys = keys, .peak = peak, .steps = steps, .updates = updates});
}

ScheduledUpdate scheduled_update(const Deck& deck, const UpdateKeys& o, std::int64_t updates) {
  const schedules::Asked asked{
      .keys = deck.learning_rate, .peak = deck.optimizer.learning_rate, .steps = deck.run.steps, .updates = updates};
  const ScheduleRow& row = row_of(deck.learning_rate.schedule);
  const auto betas = row.betas ? row.betas(asked) : std::nullopt;
  ScheduledUpdate update{.learning_rate = row.rate(asked),
                         .beta1 = betas ? betas->beta1 : o.beta1,
                         .beta2 = betas ? betas->beta2 : o.beta2,
                         .correction1 = 1,
                         .correction2 = 1};
  if (const auto& keys = optimizer_named(o.type).keys; std::ranges::find(keys, "decay_rate") != keys.end())
    update.beta2 = 1 - std::pow(static_cast<double>(updates + 1), -o.decay_rate);
  const auto correction = [&](double beta) { return o.bias_correction ? 1 - std::pow(beta, static_cast<double>(updates + 1)) : 1; };
  update.correction1 = correction(update.beta1);
  update.correction2 = correction(update.beta2);
  return update;
}

ScheduledUpdate scheduled_update(const Deck& deck, std::int64_t updates) { return scheduled_update(deck, deck.optimizer, updates); }

}  // namespace tessera
