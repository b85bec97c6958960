// For tests: memory that a buffer takes over holds nothing of what was there.
#pragma once
#include "schedule/run/task_table.hpp"

namespace tessera {

/// `run` that first fills with NaN what begins its life with a task. A task that reads what an earlier life has left, or bytes that were
/// given away before their last reader, gets NaN for it. For memory of the host and one thread (LaneMode::inline_order).
TaskFunction poisoned(const Schedule& schedule, const MemoryPlan& plan, std::array<std::byte*, tier_count> bases, TaskFunction run);

}  // namespace tessera
