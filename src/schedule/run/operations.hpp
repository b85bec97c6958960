// What each op does: one overload an op. The only place that knows both ops and kernels or communicators.
#pragma once
#include "schedule/run/communicators.hpp"
#include "schedule/run/disk.hpp"
#include "schedule/run/executor.hpp"
#include "schedule/run/witness.hpp"

namespace tessera {

/// By pass of a schedule and call of it: seconds, which each run adds to.
using CallSeconds = std::vector<std::vector<double>>;

struct TaskBackend {
  const Schedule* schedule = nullptr;
  const Communicators* communicators = nullptr;
  Disk* disk = nullptr;  ///< of a schedule with a disk tier
  bool reproducible = false;
  kernels::Backend backend = kernels::Backend::host;
  std::array<void*, lane_count> streams{};  ///< cudaStream_t of each lane on a GPU
  Witness* witness = nullptr;               ///< looks at what tasks write, where it is asked to
  CallSeconds* calls = nullptr;             ///< of passes, where they are timed
  bool poison = false;                      ///< for tests, on the host and one thread: see poison.hpp

  void operator()(const TaskRun& run) const;
};

/// Does on the group what `op` says of `to` and `from`; all_reduce takes `to` alone.
void run_collective(Communicator& group, const Collective& op, void* to, const void* from, const kernels::Context& context);

}  // namespace tessera
