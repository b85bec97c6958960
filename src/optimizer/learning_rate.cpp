#include "optimizer/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.hpp"

namespace tessera {

double learning_rate_at(const LearningRateKeys& keys, double peak, std::int64_t steps, std::int64_t step) {
  if (step < keys.warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(keys.warmup_steps);
  const double floor = keys.min_ratio * peak;
  if (keys.schedule == "constant") return peak;
  if (keys.schedule == "wsd") {
    const std::int64_t decay_begin = steps - keys.decay_steps;
    if (step < decay_begin) return peak;
    const double done = std::min(1.0, static_cast<double>(step - decay_begin + 1) / static_cast<double>(keys.decay_steps));
    return peak + (floor - peak) * done;
  }
  const std::int64_t span = steps - keys.warmup_steps;
  const double done = span <= 1 ? 1.0 : std::min(1.0, static_cast<double>(step - keys.warmup_steps) / static_cast<double>(span - 1));
  if (keys.schedule == "linear") return peak + (floor - peak) * done;
  TESSERA_REQUIRE(keys.schedule == "cosine", "learning_rate.schedule = {}", keys.schedule);
  return floor + (peak - floor) * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

}  // namespace tessera
