#include "train/observe/step_pace.hpp"

#include <algorithm>

namespace tessera {
namespace {

constexpr std::size_t paced_steps = 64, least_paced_steps = 3;

double median_step(std::deque<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::optional<Stall> StepPace::after(double seconds, double saving) {
  seconds = std::max(0.0, seconds - saving);
  std::optional<Stall> stall;
  if (before_.size() >= least_paced_steps)
    if (const double usual = median_step(before_); seconds >= stall_times * usual && seconds - usual >= stall_seconds)
      stall = Stall{.seconds = seconds, .usual = usual};
  // A stall joins: where steps stay so long, that is their pace.
  before_.push_back(seconds);
  if (before_.size() > paced_steps) before_.pop_front();
  return stall;
}

}  // namespace tessera
