#include "train/observe/run_position.hpp"

#include <algorithm>

#include "base/clock.hpp"

namespace tessera {
namespace {

constexpr std::size_t latest_steps = 16, least_steps = 3;

}  // namespace

void RunPosition::turn_to(const char* stage) {
  stage_.store(stage);
  moved_.store(now_seconds());
}

void RunPosition::end_step(double seconds, const std::map<std::string, double>& spent) {
  const std::lock_guard lock(mutex_);
  latest_.push_back(seconds);
  if (latest_.size() > latest_steps) latest_.pop_front();
  if (spent.empty()) return;
  ++spent_.steps;
  for (const auto& [kind, more] : spent) spent_.seconds[kind] += more;
}

RankWork RunPosition::work() const {
  RankWork work{.step = step_.load(), .program = {}, .tasks = {}, .beside = stage_.load(), .spent = {}};
  work.still = std::max(0.0, now_seconds() - moved_.load());
  const std::lock_guard lock(mutex_);
  work.spent = spent_;
  work.spent.role = role_.load();
  if (latest_.size() >= least_steps) work.longest_step = *std::ranges::max_element(latest_);
  return work;
}

}  // namespace tessera
