#include "optimizer/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.hpp"

namespace tessera {

namespace {

double warmup_rate(const LearningRateKeys& keys, double peak, std::int64_t step) {
  const auto done = static_cast<double>(step + 1);
  switch (keys.warmup_type) {
    case WarmupType::linear:
      return peak * done / static_cast<double>(keys.warmup_steps);
    case WarmupType::log:
      // A warmup of one step is the first of two, as in DeepSpeed: log(1) divides nothing.
      return peak * std::log(done) / std::log(static_cast<double>(std::max<std::int64_t>(2, keys.warmup_steps)));
  }
  fail(ExitCode::internal, "learning_rate.warmup_type {}", static_cast<int>(keys.warmup_type));
}

}  // namespace

double learning_rate_at(const LearningRateKeys& keys, double peak, std::int64_t steps, std::int64_t step) {
  if (step < keys.warmup_steps) return warmup_rate(keys, peak, step);
  const double floor = keys.min_ratio * peak;
  const std::int64_t span = steps - keys.warmup_steps, decay_begin = steps - keys.decay_steps;
  const double done = span <= 1 ? 1.0 : std::min(1.0, static_cast<double>(step - keys.warmup_steps) / static_cast<double>(span - 1));
  switch (keys.schedule) {
    case RateSchedule::constant:
      return peak;
    case RateSchedule::wsd:
      if (step < decay_begin) return peak;
      return peak + (floor - peak) * std::min(1.0, static_cast<double>(step - decay_begin + 1) / static_cast<double>(keys.decay_steps));
    case RateSchedule::linear:
      return peak + (floor - peak) * done;
    case RateSchedule::cosine:
      return floor + (peak - floor) * 0.5 * (1 + std::cos(std::numbers::pi * done));
  }
  fail(ExitCode::internal, "learning_rate.schedule {}", static_cast<int>(keys.schedule));
}

}  // namespace tessera
