// Schedules with DeepSpeed's numbers. Its engine steps a scheduler after each update that was applied, and a scheduler is made with
// iteration -1: update n, from 0, has the rate of iteration n - 1, and the first one that of a scheduler that has not begun. Compiled
// without contraction of products and sums, as Python computes.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.hpp"
#include "optimizer/schedules.hpp"

namespace tessera::schedules {
namespace {

double real(std::int64_t count) { return static_cast<double>(count); }

/// Steps of a warmup: two at least, since log(1) is 0.
std::int64_t warmup_of(const Asked& asked) { return std::max<std::int64_t>(2, asked.keys.warmup_steps); }

/// The share of the warmup that is done at an iteration of it.
double warmed(const Asked& asked, std::int64_t iteration) {
  switch (asked.keys.warmup_type) {
    case WarmupType::linear:
      return real(iteration) / real(warmup_of(asked));
    case WarmupType::log:
      return 1.0 / std::log(real(warmup_of(asked))) * std::log(real(iteration + 1));
  }
  fail(ExitCode::internal, "learning_rate.warmup_type {}", static_cast<int>(asked.keys.warmup_type));
}

/// From warmup_min_lr to the peak by the share of the warmup, and `after` it.
double warmed_rate(const Asked& asked, double (*after)(const Asked&, std::int64_t iteration)) {
  const std::int64_t iteration = asked.updates - 1;
  const double least = asked.keys.warmup_min_lr;
  if (iteration < 0) return least;
  const double share = iteration < warmup_of(asked) ? warmed(asked, iteration) : after(asked, iteration);
  return least + (asked.peak - least) * share;
}

struct Cycle {
  double first, second, total;  // updates
};
Cycle cycle_of(const OneCycleKeys& keys) {
  const double first = real(keys.first_step_size), second = real(keys.second_step_size);
  return {first, second, first + second};
}

/// The way from the cycle's edge to its middle at a count of updates, in stairs where there are some.
double cycle_scale(const OneCycleKeys& keys, double updates) {
  const auto [first, second, total] = cycle_of(keys);
  const double ratio = first / total, place = 1.0 + updates / total - std::floor(1 + updates / total);
  const bool rises = place <= ratio;
  const std::int64_t stairs = rises ? keys.first_stair_count : keys.second_stair_count;
  if (stairs == 0) return rises ? place / ratio : (place - 1) / (ratio - 1);
  const double within = std::fmod(updates, total);
  const double at = within <= first ? within * real(stairs) / first : (total - within) * real(stairs) / second;
  return std::floor(at) / real(stairs);
}

bool in_cycle(const Asked& asked) { return real(asked.updates - 1) < cycle_of(asked.keys.one_cycle).total; }
/// What n updates after the cycle make of a rate.
double decay_factor(const Asked& asked, double rate) {
  const OneCycleKeys& keys = asked.keys.one_cycle;
  if (keys.decay_step_size == 0) return 1;
  return 1 + rate * ((real(asked.updates) - cycle_of(keys).total) / real(keys.decay_step_size));
}

}  // namespace

double warmup_lr(const Asked& asked) {
  return warmed_rate(asked, [](const Asked&, std::int64_t) { return 1.0; });
}

double warmup_decay_lr(const Asked& asked) {
  return warmed_rate(asked, [](const Asked& a, std::int64_t iteration) {
    return std::max(0.0, real(a.steps - iteration) / std::max(1.0, real(a.steps - warmup_of(a))));
  });
}

double warmup_cosine_lr(const Asked& asked) {
  const std::int64_t iteration = asked.updates - 1, warmup = warmup_of(asked);
  if (iteration < 0) return 0;
  if (iteration < warmup) {
    const double least = asked.keys.warmup_min_ratio;
    return asked.peak * (least + warmed(asked, iteration) * (1.0 - least));
  }
  const double done = std::min(1.0, real(iteration - warmup + 1) / real(std::max<std::int64_t>(1, asked.steps - warmup)));
  const double least = asked.keys.min_ratio;
  return asked.peak * (least + (1.0 - least) * ((1 + std::cos(std::numbers::pi * done)) / 2));
}

double one_cycle(const Asked& asked) {
  const OneCycleKeys& keys = asked.keys.one_cycle;
  if (in_cycle(asked)) return keys.min_lr + (asked.peak - keys.min_lr) * cycle_scale(keys, real(asked.updates));
  return keys.min_lr / decay_factor(asked, keys.decay_lr_rate);
}

std::optional<Betas> one_cycle_betas(const Asked& asked) {
  const OneCycleKeys& keys = asked.keys.one_cycle;
  if (!keys.cycle_momentum) return {};
  constexpr double beta2 = 0.99;
  // A scheduler that has not begun leaves the least momentum, where the cycle begins with the largest.
  if (asked.updates == 0) return Betas{keys.min_mom, beta2};
  if (in_cycle(asked)) return Betas{keys.max_mom - (keys.max_mom - keys.min_mom) * cycle_scale(keys, real(asked.updates)), beta2};
  return Betas{keys.max_mom * decay_factor(asked, keys.decay_mom_rate), beta2};
}

double lr_range_test(const Asked& asked) {
  const RangeTestKeys& keys = asked.keys.lr_range_test;
  const double done = real(asked.updates) / real(keys.step_size);
  return asked.peak * (1 + keys.step_rate * (keys.staircase ? std::floor(done) : done));
}

}  // namespace tessera::schedules
