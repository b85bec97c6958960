#include "schedule/run/timeline.hpp"

namespace tessera {

Timeline room_for(const TaskTable& table, ProgramKind kind) {
  Timeline timeline;
  for (std::size_t lane = 0; lane < lane_count; ++lane) {
    std::int64_t tasks = 0;
    for (const OrderedPhase& phase : table.program(kind)) tasks += phase.repeat * phase.tasks[lane];
    timeline.lanes[lane].reserve(static_cast<std::size_t>(tasks));
  }
  return timeline;
}

}  // namespace tessera
