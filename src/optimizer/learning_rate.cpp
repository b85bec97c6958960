#include "optimizer/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.hpp"

namespace tessera {

namespace {

double warmup_rate(const LearningRateKeys& keys, double peak, std::int64_t step) {
  const auto done = static_cast<double>(step + 1);
  if (keys.warmup_type == "linear") return peak * done / static_cast<double>(keys.warmup_steps);
  TESSERA_REQUIRE(keys.warmup_type == "log", "learning_rate.warmup_type = {}", keys.warmup_type);
  // A warmup of one step is the first of two, as in DeepSpeed: log(1) divides nothing.
  return peak * std::log(done) / std::log(static_cast<double>(std::max<std::int64_t>(2, keys.warmup_steps)));
}

}  // namespace

double learning_rate_at(const LearningRateKeys& keys, double peak, std::int64_t steps, std::int64_t step) {
  if (step < keys.warmup_steps) return warmup_rate(keys, peak, step);
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
