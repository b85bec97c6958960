// From buffers in place to waits: each task learns how far every other lane must have come before it may start.
#pragma once
#include <array>
#include <optional>

#include "schedule/plan/memory_plan.hpp"

namespace tessera {

/// How many tasks each other lane must have finished, counted from the start of this repetition of the section; negative numbers reach into
/// what ran before. No value: no need to wait.
using Waits = std::array<std::optional<std::int64_t>, lane_count>;

struct OrderedPhase {
  int section = 0;
  std::int64_t repeat = 1;
  std::optional<std::int64_t> micro;             ///< the micro-batch of the first repetition
  std::vector<std::vector<Waits>> waits;         ///< of each task, by repetition; the last ones serve all later repetitions
  std::array<std::int64_t, lane_count> tasks{};  ///< of one repetition, by lane

  const std::vector<Waits>& waits_of(std::int64_t repetition) const {
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
