// What a task of kernels reads and writes by itself.
#pragma once
#include <optional>
#include <string_view>

#include "schedule/task.hpp"

namespace tessera {

struct MemoryPass {
  std::string_view kernel;  ///< of memory_kernels (machine/profile.hpp): whose rate it has
  double bytes = 0;         ///< read and written
};

/// Nothing of what is no pass over memory of one tier: passes of segments, collectives, transfers, products, copies between a GPU and its
/// host, whatever reads or writes a disk.
std::optional<MemoryPass> memory_pass_of(const Task& task, const Schedule& schedule);

}  // namespace tessera
