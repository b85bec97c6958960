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
  double correction1, correction2;  ///< 1 - beta^(updates + 1) of the update's own betas, as in DeepSpeed's Adam, where moments begin at 0
};
ScheduledUpdate scheduled_update(const Deck& deck, std::int64_t updates);
/// Of one of the deck's optimizers.
ScheduledUpdate scheduled_update(const Deck& deck, const UpdateKeys& optimizer, std::int64_t updates);

}  // namespace tessera
