// On which figures of a machine profile a prediction rests.
#pragma once
#include <string>
#include <vector>

#include "schedule/simulate/task_seconds.hpp"

namespace tessera {

struct Figures {
  std::vector<std::string> used;     ///< keys, in the profile's order, by which some task would take longer if they were worse by half
  std::vector<std::string> assumed;  ///< of them those that machine.assumed names
};

/// Of all tasks of a schedule.
Figures figures_of(const Schedule& schedule, const MachineProfile& machine, const Placement& placement);

/// "6 of the 9 figures that this step rests on: overhead.task, ..."; empty where none is assumed.
std::string describe_assumed(const Figures& figures);

}  // namespace tessera
