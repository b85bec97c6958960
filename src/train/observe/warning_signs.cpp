#include "train/observe/warning_signs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/types.hpp"

namespace tessera {
namespace {

constexpr std::size_t most_norms = 50, least_norms = 8, most_losses = 100;
constexpr double norm_jump = 10, least_change = 1e-4, slowdown = 1.1;
constexpr std::int64_t recent_minutes = 5, hour = 60;

double median(std::deque<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void keep(std::deque<double>& values, double value, std::size_t most) {
  values.push_back(value);
  if (values.size() > most) values.pop_front();
}

}  // namespace

std::int64_t steps_still_by_design(const LearningRateKeys& keys) {
  const bool warms_up = keys.schedule == RateSchedule::warmup_lr || keys.schedule == RateSchedule::warmup_decay_lr;
  return warms_up && keys.warmup_min_lr == 0 ? 2 : 0;
}

std::vector<std::string> WarningSigns::after(const StepFigures& f, double now) {
  std::vector<std::string> lines;
  const auto say = [&](Kind kind, const std::string& line) {
    if (!line.empty() && first(kind)) lines.push_back(fmt::format("step {}: {}", f.step, line));
  };
  say(Kind::jump, jump(f));
  if (f.grad_norm == 0)
    say(Kind::no_gradient,
        "the gradient is 0, so the model learns nothing. Look at which tokens count in the loss (targets in metrics.jsonl), and at "
        "model.freeze");
  keep(norms_, f.grad_norm, most_norms);
  keep(losses_, f.loss, most_losses);
  say(Kind::still, still(f));
  steps_without_rate_ = f.learning_rate == 0 && f.step > still_by_design_ ? steps_without_rate_ + 1 : 0;
  if (steps_without_rate_ == 2)
    say(Kind::no_rate, "the learning rate is 0 for a second step, so weights do not change. Look at learning_rate.* and run.steps");
  say(Kind::slower, slower(f, now));
  return lines;
}

std::string WarningSigns::jump(const StepFigures& f) const {
  if (norms_.size() < least_norms) return "";
  const double usual = median(norms_);
  if (usual == 0 || f.grad_norm <= norm_jump * usual) return "";
  return fmt::format(
      "the gradient's norm is {:.3g}, {:.0f} times that of the steps before ({:.3g}). Clipping (optimizer.gradient_clipping) limits one "
      "such step. If more follow or the loss rises, look at this step's data, a longer learning_rate.warmup_steps or a lower "
      "optimizer.learning_rate",
      f.grad_norm, f.grad_norm / usual, usual);
}

std::string WarningSigns::still(const StepFigures& f) const {
  if (losses_.size() < most_losses) return "";
  const auto [least, most] = std::ranges::minmax(losses_);
  if (most - least > least_change * std::abs(most)) return "";
  return fmt::format("the loss has stayed at {:.6g} for {} steps. Look at optimizer.learning_rate, model.freeze and the data", f.loss,
                     most_losses);
}

double WarningSigns::rate_of(std::int64_t begin, std::int64_t end) const {
  double tokens = 0, seconds = 0;
  for (const Minute& m : minutes_)
    if (m.number >= begin && m.number < end) tokens += m.tokens, seconds += m.seconds;
  return seconds > 0 ? tokens / seconds : 0;
}

std::string WarningSigns::slower(const StepFigures& f, double now) {
  const auto minute = static_cast<std::int64_t>(now / 60);
  const bool begins = minutes_.empty() || minutes_.back().number != minute;
  if (begins) minutes_.push_back({.number = minute});
  minutes_.back().tokens += f.tokens_per_second * f.seconds;
  minutes_.back().seconds += f.seconds;
  while (minutes_.front().number < minute - hour - recent_minutes) minutes_.pop_front();
  if (!begins) return "";
  const double recent = rate_of(minute - recent_minutes, minute), before = rate_of(minute - hour - recent_minutes, minute - hour);
  if (recent == 0 || before == 0 || recent * slowdown >= before) return "";
  return fmt::format(
      "steps of the last {} minutes reach {:.3g} tokens/s, those of an hour before reached {:.3g}. Look at other load on the nodes, and at "
      "a step's timeline (run.trace)",
      recent_minutes, recent, before);
}

std::string WarningSigns::after_save(std::int64_t step, double seconds, double interval) {
  constexpr double noticed = 1;  // shorter saves cost a run of small models little, whatever their interval
  if (interval == 0 || seconds <= std::max(interval, noticed) || !first(Kind::long_save)) return "";
  return fmt::format(
      "step {}: the save took {:.0f} s and the next is due {:.0f} s after it began, so steps wait for saves. Look at checkpoint.every, "
      "checkpoint.staging and the file system",
      step, seconds, interval);
}

std::string WarningSigns::no_room(std::int64_t step, const std::string& folder, std::int64_t needed, std::int64_t free) {
  if (!first(Kind::no_room)) return "";
  return fmt::format(
      "step {}: the next saves need {} at once, but {} has {} free. Free some space, or lower checkpoint.keep. A save that finds the disk "
      "full is tried again (checkpoint.retries), and then ends the run",
      step, human_bytes(static_cast<double>(needed)), folder, human_bytes(static_cast<double>(free)));
}

}  // namespace tessera
