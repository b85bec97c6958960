// Learning-rate schedules.
#pragma once
#include <cstdint>

#include "deck/deck.hpp"

namespace tessera {

/// Learning rate of the update before which `updates` have been applied, of a run of `steps`. It is a function of that count alone, and
/// goes on beyond the run's end.
double learning_rate_at(const LearningRateKeys& keys, double peak, std::int64_t steps, std::int64_t updates);

/// What an update takes of the schedule.
struct ScheduledUpdate {
  double learning_rate, beta1, beta2;
};
ScheduledUpdate scheduled_update(const Deck& deck, std::int64_t updates);
/// Of one of the deck's optimizers.
ScheduledUpdate scheduled_update(const Deck& deck, const OptimizerKeys& optimizer, std::int64_t updates);

}  // namespace tessera
