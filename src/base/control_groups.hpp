// What control groups grant this process: Slurm, systemd and containers put it into some, and what each of them and those above it allow
// counts.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// Processor time of one group: cores' worth of it, shared by all of its processes.
struct GroupCores {
  std::string group;  ///< its path
  double cores = 0;
};

struct GroupLimits {
  std::optional<std::uint64_t> memory;  ///< bytes: the smallest limit
  std::optional<std::uint64_t>
      memory_left;                ///< bytes that the tightest group has left; what only caches files is given back and counts as left
  std::string memory_group;       ///< that has the smallest limit
  std::vector<GroupCores> cores;  ///< groups that limit processor time, from this process's own upwards
  std::optional<std::int64_t> processes;  ///< the smallest limit

  /// The fewest cores of `cores`; 0: no limit.
  double fewest_cores() const;
};

/// Reads version 2 and version 1 of control groups: this process's own group and all above it that can be seen. `root` stands before /proc
/// and /sys in tests.
GroupLimits group_limits(const std::string& root = "");

/// Threads that compute in a program that is alone: the processing units that this process may use, and no more than whole cores that its
/// groups grant. At least 1.
int usable_threads();

}  // namespace tessera
