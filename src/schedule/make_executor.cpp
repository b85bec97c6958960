#include "schedule/make_executor.hpp"

#ifdef TESSERA_CUDA
#include "schedule/stream_executor.hpp"
#endif

namespace tessera {

#ifdef TESSERA_CUDA
namespace {
/// Asks the communicators whose collectives wait on streams.
StreamWatch watch_over(const TaskBackend& backend) {
  std::vector<Communicator*> communicators;
  for (Communicator* c : {backend.gather, backend.reduce})
    if (c) communicators.push_back(c);
  return {.check =
              [=](double waited) {
                for (Communicator* c : communicators) c->check(waited);
              },
          .abort =
              [=] {
                for (Communicator* c : communicators) c->abort();
              }};
}
}  // namespace
#endif

std::unique_ptr<Executor> make_executor(const Schedule& schedule, const MemoryPlan& plan, std::array<std::byte*, tier_count> bases,
                                        LaneMode mode, [[maybe_unused]] GraphMode graphs, TaskBackend backend) {
  if (backend.backend == kernels::Backend::host) return std::make_unique<HostExecutor>(TaskTable(schedule, plan, bases, backend), mode);
#ifdef TESSERA_CUDA
  auto streams = std::make_unique<cuda::Streams>(lane_count);
  for (std::size_t lane = 0; lane < lane_count; ++lane) backend.streams[lane] = (*streams)[lane];
  return std::make_unique<StreamExecutor>(TaskTable(schedule, plan, bases, backend), std::move(streams), graphs, watch_over(backend));
#else
  fail(ExitCode::environment, "this build has no CUDA backend: build with the cuda preset, or set run.device = \"host\"");
#endif
}

}  // namespace tessera
