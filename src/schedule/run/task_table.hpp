// A schedule made ready to run: waits worked out, the address of every use known. What every executor is made of.
#pragma once
#include <array>
#include <functional>
#include <span>

#include "schedule/plan/order.hpp"

namespace tessera {

/// Of a task: a pass over a layer with adapters of all seven matrices has some 70, side by side some 110.
inline constexpr std::size_t most_uses = 192;

/// What a task's code gets: the address of each use, null for a use of no bytes.
struct TaskRun {
  const Task& task;
  std::span<void* const> at;
};
using TaskFunction = std::function<void(const TaskRun&)>;

class TaskTable {
 public:
  /// `bases[tier]` is where each arena begins. Running allocates nothing.
  TaskTable(const Schedule& schedule, const MemoryPlan& plan, std::array<std::byte*, tier_count> bases, TaskFunction run);

  const OrderedProgram& program(ProgramKind kind) const { return programs_[static_cast<std::size_t>(kind)]; }
  /// Whether any task is on this lane.
  bool uses(Lane lane) const;
  const std::vector<Task>& tasks(int section) const { return schedule_.sections[static_cast<std::size_t>(section)].tasks; }
  /// Where a task's uses are for a micro-batch; null where a use is of nothing.
  std::array<void*, most_uses> addresses_of(int section, int task, std::int64_t micro) const;
  /// Calls the task's code for a micro-batch; an error names the task.
  void run(int section, int task, std::int64_t micro) const;

 private:
  /// Of a use: where it begins in slot 0, and the slots that micro-batches take in turn.
  struct Address {
    std::byte* base = nullptr;
    std::int64_t slot_bytes = 0, shift = 0, slots = 1;
  };
  const Schedule& schedule_;
  TaskFunction run_;
  std::array<OrderedProgram, program_count> programs_;
  std::vector<std::vector<std::vector<Address>>> addresses_;  ///< [section][task][use]
};

}  // namespace tessera
