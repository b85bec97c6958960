// The schedules, a function each. A new one is a word in deck/modes.hpp, its keys in deck/rules/schedule_rules.cpp, a function, and its row
// in learning_rate.cpp.
#pragma once
#include <cstdint>
#include <optional>

#include "deck/deck.hpp"

namespace tessera::schedules {

/// The update that a schedule is asked about.
struct Asked {
  const LearningRateKeys& keys;
  double peak;
  std::int64_t steps;    // of the run
  std::int64_t updates;  // applied before this one
};

// Warmup reaches the peak on its last step: linearly from 1 / warmup_steps of it, or as log(updates + 1) / log(warmup_steps), which is 0 on
// the first one. Then cosine and linear fall to min_ratio x peak on the last step; constant stays; wsd stays and falls to it over the last
// decay_steps.
double cosine(const Asked& asked);
double linear(const Asked& asked);
double constant(const Asked& asked);
double wsd(const Asked& asked);

// DeepSpeed's classes (runtime/lr_schedules.py of 0.19.6), by its operations in its order, so that every bit is that of its numbers.
double warmup_lr(const Asked& asked);
double warmup_decay_lr(const Asked& asked);
double warmup_cosine_lr(const Asked& asked);
double one_cycle(const Asked& asked);
double lr_range_test(const Asked& asked);

/// What a schedule that cycles the momentum puts in the place of the optimizer's; none where the deck keeps those.
struct Betas {
  double beta1, beta2;
};
std::optional<Betas> one_cycle_betas(const Asked& asked);

}  // namespace tessera::schedules
