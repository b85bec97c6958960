// Learning-rate schedules.
#pragma once
#include <cstdint>

#include "deck/deck.hpp"

namespace tessera {

/// Learning rate of step `step` (0-based) of `steps`. Warmup reaches the peak on its last step: linearly from 1/warmup_steps of it, or as
/// log(step + 1) / log(warmup_steps), which is 0 on the first one (DeepSpeed's WarmupLR). Then cosine and linear fall to min_ratio x peak
/// on the last step; constant stays; wsd stays and falls linearly to min_ratio x peak over the last decay_steps steps.
double learning_rate_at(const LearningRateKeys& keys, double peak, std::int64_t steps, std::int64_t step);

}  // namespace tessera
