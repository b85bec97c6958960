// How long a task takes on a machine, when it has the machine to itself.
#pragma once
#include "schedule/simulate/placement.hpp"
#include "schedule/task.hpp"

namespace tessera {

/// By section and task of a schedule. A task takes the sum of its calls, on the slowest of all ranks and at the share of the profile's
/// rates that programs reach. Transfers go both ways at once. The ranks of a node share its disks, cores and network evenly and at the same
/// time. Throws Error(usage) that names the missing section where the profile does not say how fast something goes that a task does.
std::vector<std::vector<double>> task_seconds(const Schedule& schedule, const MachineProfile& machine, const Placement& placement);

/// A part of a task, in order: its share of the task's seconds, and the share of its rate that it loses while a collective runs beside it.
struct LossPart {
  double share = 1, loss = 0;
};
/// What a schedule's compute loses to collectives beside it.
struct Contention {
  std::vector<std::vector<std::vector<LossPart>>> losses;  ///< by section and task; of no parts: contention.compute of the profile
  std::vector<double> room;                                ///< by section: seconds by which products are longer that leave room
};
/// Products that leave room (RunPass::beside) lose nothing more beside a collective, other products contention.second_wave.
Contention contention_of(const Schedule& schedule, const MachineProfile& machine, const Placement& placement);

/// Of a collective by which each rank takes in `bytes`. Inside a node bytes go at the node's rate, between nodes through all adapters of a
/// node at once, whichever takes longer; gathers and scattered sums pass a ring of ranks, whole sums a tree.
double collective_seconds(CollectiveKind kind, double bytes, const Group& group, int ranks_per_node, const MachineProfile& machine,
                          int by = 1);

/// The mean of the largest of so many draws from a normal distribution of mean 0 and deviation 1: 0 of one, 1.42 of 8, 2.61 of 128.
double slowest_of(int ranks);

}  // namespace tessera
