// What each op does on the host: one overload an op. The only place that knows both ops and kernels or communicators.
#pragma once
#include "schedule/executor.hpp"
#include "topology/communicator.hpp"

namespace tessera {

struct HostBackend {
  const Schedule* schedule = nullptr;
  Communicator* gather = nullptr;  ///< each lane has its own; null where one rank is the whole group
  Communicator* reduce = nullptr;
  bool reproducible = false;
  float grad_scale = 1;  ///< 1 / tokens of the global batch

  void operator()(const TaskRun& run) const;
};

}  // namespace tessera
