// Which cores a rank computes on.
#pragma once
#include <string>
#include <vector>

#include "base/control_groups.hpp"
#include "topology/world.hpp"

namespace tessera {

/// A node's processing units (hardware threads, by operating-system number), grouped by core.
struct NodeCores {
  int packages = 1;
  std::vector<std::vector<int>> cores;  ///< in the topology's order, so that neighbours share caches
};

/// What binding a rank has or should have. Made by plan_binding; report_binding fills it for the running process.
struct Binding {
  enum class Source { none, launcher, tessera };
  Source source = Source::none;
  std::vector<int> units;  ///< processing units of this rank, ascending
  int cores = 0;           ///< cores that these units belong to
  int sharing = 1;         ///< local ranks on the same units, this one included
  int threads = 1;         ///< cores / sharing, and no more than `granted`, at least 1: the threads that this rank should compute with
  double granted = 0;      ///< cores' worth of processor time that control groups leave this rank; 0: no limit
  int node_packages = 1, node_cores = 0;
};

/// What control groups leave rank `local_rank` of a node, of each of whose ranks `groups` has those that limit processor time: ranks in one
/// group share what it grants. 0: no limit.
double granted_cores(const std::vector<std::vector<GroupCores>>& groups, int local_rank);

/// Pure. `allowed` holds the units that each local rank may use now. Ranks whose units differ were bound by the launcher: that stands.
/// Ranks that all share one set are given consecutive cores of it by local rank; with more ranks than cores nobody is bound.
Binding plan_binding(const NodeCores& node, const std::vector<std::vector<int>>& allowed, int local_rank, double granted = 0);

/// Collective over the world, before threads start. Reads the node through hwloc and, unless `bind` is false or the launcher has done it,
/// binds this process to its share. Failing to bind is a warning, not an error.
Binding bind_process(const World& world, bool bind = true);

/// "1 of 2 cores (unit 0), bound by local rank, 1 thread"
std::string describe(const Binding& binding);

/// "0-3,8"
std::string unit_ranges(const std::vector<int>& units);

}  // namespace tessera
