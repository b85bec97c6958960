// When each task of one run of a program began and ended.
#pragma once
#include <optional>

#include "schedule/run/task_table.hpp"

namespace tessera {

struct TaskTime {
  const Task* task = nullptr;
  std::optional<std::int64_t> micro_batch = {};  ///< of the step; none outside micro-batches
  double begin = 0, end = 0;                     ///< seconds since the run began
};

/// Refers to tasks of the schedule, which must live as long.
struct Timeline {
  std::array<std::vector<TaskTime>, lane_count> lanes;  ///< in the order in which each lane ran them
  double begun = 0;                                     ///< now_seconds() as the run began
  double seconds = 0;                                   ///< of the whole run
  bool graph = false;                                   ///< runs that are not traced are one CUDA graph
};

/// An empty timeline whose lanes have room for every task of a program: noting them allocates nothing.
Timeline room_for(const TaskTable& table, ProgramKind kind);

}  // namespace tessera
