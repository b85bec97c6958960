// From buffers in place to waits: each task learns how far every other lane must have come before it may start.
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "schedule/plan/memory_plan.hpp"

namespace tessera {

/// How many tasks each other lane must have finished, counted from the start of this repetition of the section; negative numbers reach into
/// what ran before. No value: no need to wait.
using Waits = std::array<std::optional<std::int64_t>, lane_count>;

/// Of a section's tasks. Repetitions that are alike share them: a step of a pipeline has thousands.
class SectionWaits {
 public:
  explicit SectionWaits(std::vector<Waits> of_tasks) : of_tasks_(std::make_shared<const std::vector<Waits>>(std::move(of_tasks))) {}
  const Waits& operator[](std::size_t task) const { return (*of_tasks_)[task]; }
  const std::vector<Waits>& tasks() const { return *of_tasks_; }

 private:
  std::shared_ptr<const std::vector<Waits>> of_tasks_;
};

struct OrderedPhase {
  int section = 0;
  std::int64_t repeat = 1;
  std::optional<std::int64_t> micro;             ///< the micro-batch of the first repetition
  std::vector<SectionWaits> waits;               ///< by repetition; the last ones serve all later repetitions
  std::array<std::int64_t, lane_count> tasks{};  ///< of one repetition, by lane

  const SectionWaits& waits_of(std::int64_t repetition) const {
    const auto known = static_cast<std::int64_t>(waits.size());
    return waits[static_cast<std::size_t>(repetition < known ? repetition : known - 1)];
  }
  std::optional<std::int64_t> micro_of(std::int64_t repetition) const { return micro ? std::optional(*micro + repetition) : std::nullopt; }
};
using OrderedProgram = std::vector<OrderedPhase>;

/// Derives the waits from uses and places: a task waits for the last writer of what it touches, and, where it writes, for the readers.
/// Reuse of memory by the plan is a conflict like any other. Tasks of one lane are in order by themselves.
OrderedProgram order(const Schedule& schedule, const MemoryPlan& plan, const Program& program);

}  // namespace tessera
