#include "train/observe/step_breakdown.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "train/observe/memory_use.hpp"

namespace tessera {

StepBreakdown::StepBreakdown(const RunParts& run, ProgressLog& progress)
    : run_(run), progress_(progress), graphs_(run.deck.run.device == RunDevice::cuda) {}

bool StepBreakdown::wants_timeline(std::int64_t done) const {
  const std::int64_t every = run_.deck.run.breakdown_every;
  return every > 0 && (!graphs_ || (done + 1) % every == 0);
}

io::NamedNumbers StepBreakdown::rank_seconds(std::int64_t done) {
  const std::int64_t every = run_.deck.run.breakdown_every;
  if (every == 0 || done % every != 0 || run_.world.rank() != 0) return {};
  return ranks_.since_last(run_.world.spent_of_ranks());
}

void StepBreakdown::measure(StepEnd& end) {
  end.rank_seconds = rank_seconds(end.done);
  if (wants_timeline(end.done - 1)) end.breakdown = break_down(*end.timeline, run_.engine.schedule(), run_.engine.planned().request.mesh);
}

Verdict StepBreakdown::after(const StepEnd& end) {
  // The first step of a start does what is done once.
  if (!end.breakdown || end.done == run_.first_step + 1) return Verdict::go_on;
  if (steps_ == 0) first_ = end.done;
  last_ = end.done;
  sum_.add(*end.breakdown);
  seconds_ += end.figures.seconds, data_seconds_ += end.data_seconds, ++steps_;
  if (end.done % run_.deck.run.breakdown_every != 0 || ++intervals_ < next_table_) return Verdict::go_on;
  next_table_ = 2 * intervals_;
  print(end.done);
  return Verdict::go_on;
}

void StepBreakdown::finish(std::int64_t done) {
  if (steps_ > 0) print(done);
}

void StepBreakdown::print(std::int64_t done) {
  const auto steps = static_cast<double>(steps_);
  const std::string which = steps_ == 1 ? fmt::format("step {}", last_) : fmt::format("steps {} to {}", first_, last_);
  const std::string more =
      done < run_.deck.run.steps
          ? fmt::format(" (metrics.jsonl has {}; the next table comes after step {})", graphs_ ? "each that was timed" : "every step",
                        std::min(run_.deck.run.steps, done + (next_table_ - intervals_) * run_.deck.run.breakdown_every))
          : "";
  progress_.note(fmt::format("time of {} on rank 0{}{}:{}", which, steps_ == 1 ? "" : ", their mean", more,
                             print_breakdown(sum_, steps, seconds_ / steps, data_seconds_ / steps)));
  if (!std::exchange(memory_shown_, true))
    progress_.note(fmt::format("memory of rank 0, the most that is in use in each part of a step, planned and allocated:{}",
                               print_memory_in_use(run_)));
  sum_ = {}, seconds_ = data_seconds_ = 0, steps_ = 0;
}

io::NamedNumbers seconds_of_parts(const StepEnd& end) {
  const Breakdown& b = *end.breakdown;
  io::NamedNumbers all;
  for (const TimePartRow& part : time_parts)
    if (const double exposed = b.of(part.part).exposed; exposed > 0) all.emplace_back(part.name, exposed);
  all.emplace_back("waits", b.idle);
  all.emplace_back("data", end.data_seconds);
  all.emplace_back("host", std::max(0.0, end.figures.seconds - end.data_seconds - b.seconds));
  return all;
}

io::NamedNumbers bytes_of_parts(const StepEnd& end) {
  io::NamedNumbers all;
  for (const TimePartRow& part : time_parts)
    if (const double bytes = end.breakdown->of(part.part).bytes_moved; part.moves && bytes > 0) all.emplace_back(part.name, bytes);
  return all;
}

}  // namespace tessera
