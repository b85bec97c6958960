// Schedules of a warmup and what follows it.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.hpp"
#include "optimizer/schedules.hpp"

namespace tessera::schedules {
namespace {

bool warming_up(const Asked& asked) { return asked.updates < asked.keys.warmup_steps; }

double warmup_rate(const Asked& asked) {
  const auto done = static_cast<double>(asked.updates + 1);
  switch (asked.keys.warmup_type) {
    case WarmupType::linear:
      return asked.peak * done / static_cast<double>(asked.keys.warmup_steps);
    case WarmupType::log:
      // A warmup of one step is the first of two: log(1) divides nothing.
      return asked.peak * std::log(done) / std::log(static_cast<double>(std::max<std::int64_t>(2, asked.keys.warmup_steps)));
  }
  fail(ExitCode::internal, "learning_rate.warmup_type {}", static_cast<int>(asked.keys.warmup_type));
}

double floor_of(const Asked& asked) { return asked.keys.min_ratio * asked.peak; }

/// The share of the steps after the warmup that are over, 1 on the last one.
double done_after_warmup(const Asked& asked) {
  const std::int64_t warmup = asked.keys.warmup_steps, span = asked.steps - warmup;
  return span <= 1 ? 1.0 : std::min(1.0, static_cast<double>(asked.updates - warmup) / static_cast<double>(span - 1));
}

/// The share of the way down that is done at a share of a decay: one minus what is left of it.
double fallen(DecayType type, double done) {
  switch (type) {
    case DecayType::linear:
      return done;
    case DecayType::cosine:
      return 0.5 * (1 - std::cos(std::numbers::pi * done));
    case DecayType::exponential:
      return 2 - 2 * std::pow(0.5, done);
    case DecayType::minus_sqrt:
      return std::sqrt(done);
  }
  fail(ExitCode::internal, "learning_rate.decay_type {}", static_cast<int>(type));
}

}  // namespace

double constant(const Asked& asked) { return warming_up(asked) ? warmup_rate(asked) : asked.peak; }

double linear(const Asked& asked) {
  if (warming_up(asked)) return warmup_rate(asked);
  return asked.peak + (floor_of(asked) - asked.peak) * done_after_warmup(asked);
}

double cosine(const Asked& asked) {
  if (warming_up(asked)) return warmup_rate(asked);
  return floor_of(asked) + (asked.peak - floor_of(asked)) * 0.5 * (1 + std::cos(std::numbers::pi * done_after_warmup(asked)));
}

double wsd(const Asked& asked) {
  const std::int64_t begin = asked.steps - asked.keys.decay_steps;
  if (asked.updates < begin || warming_up(asked)) return constant(asked);
  const double done = std::min(1.0, static_cast<double>(asked.updates - begin + 1) / static_cast<double>(asked.keys.decay_steps));
  return asked.peak + (floor_of(asked) - asked.peak) * fallen(asked.keys.decay_type, done);
}

}  // namespace tessera::schedules
