// How long a task takes on a machine, when it has the machine to itself.
#pragma once
#include "schedule/simulate/placement.hpp"
#include "schedule/task.hpp"

namespace tessera {

/// By section and task of a schedule. Assumptions, all of them simple: a task takes the sum of its calls; lanes do not slow each other;
/// transfers go both ways at once; the ranks of a node share its disks, its cores and its network evenly and at the same time. Throws
/// Error(usage) that names the missing section where the profile does not say how fast something goes that a task does.
std::vector<std::vector<double>> task_seconds(const Schedule& schedule, const MachineProfile& machine, const Placement& placement);

/// Of a collective by which each rank takes in `bytes`. Inside a node bytes go at the node's rate, between nodes through all adapters of a
/// node at once, whichever takes longer; gathers and scattered sums pass a ring of ranks, whole sums a tree.
double collective_seconds(CollectiveKind kind, double bytes, const Group& group, int ranks_per_node, const MachineProfile& machine,
                          int by = 1);

}  // namespace tessera
