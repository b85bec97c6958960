#include "schedule/run/make_executor.hpp"

#include "base/backend.hpp"
#include "schedule/run/poison.hpp"

#ifdef TESSERA_CUDA
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/clock.hpp"
#include "schedule/run/stream_executor.hpp"
#endif

namespace tessera {
namespace {

std::vector<Communicator*> communicators_of(const TaskBackend& backend) {
  return backend.communicators ? backend.communicators->all() : std::vector<Communicator*>{};
}

/// Communicators whose calls block find their errors themselves, and end at once when they are told.
LaneWatch watch_over_calls(const TaskBackend& backend) {
  return {.abort = [communicators = communicators_of(backend)] {
    for (Communicator* c : communicators) c->abort();
  }};
}

#ifdef TESSERA_CUDA
/// Ends the communicators' collectives, each on a thread of its own: giving one up may wait for the device, on which another's kernels
/// still spin. One that does not come back is left behind: an error is on its way that ends the process.
void abort_all(const std::vector<Communicator*>& communicators) {
  constexpr double limit_seconds = 10;
  auto ended = std::make_shared<std::atomic<std::size_t>>(0);
  for (Communicator* c : communicators)
    std::thread([c, ended] {
      c->abort();
      ++*ended;
    }).detach();
  for (const double begin = now_seconds(); *ended < communicators.size() && now_seconds() - begin < limit_seconds;) usleep(100);
}

/// Asks the communicators whose collectives wait on streams.
LaneWatch watch_over_streams(const TaskBackend& backend) {
  const std::vector<Communicator*> communicators = communicators_of(backend);
  return {.check =
              [=](double waited) {
                for (Communicator* c : communicators) c->check(waited);
              },
          .abort = [=] { abort_all(communicators); }};
}
#endif

}  // namespace

LaneMode lane_mode(const Deck& deck, int ranks, int cores) {
  if (deck.zero.overlap_comm == OverlapComm::no || deck.run.lanes == RunLanes::inline_order) return LaneMode::inline_order;
  if (deck.run.lanes == RunLanes::threads || deck.zero.overlap_comm == OverlapComm::yes) return LaneMode::threads;
  // Who waits for a disk takes no core, nor does a stage that waits for another; and what stages send must not wait for what they receive.
  if (uses_disks(deck) || deck.mesh.pp > 1) return LaneMode::threads;
  // A rank alone has no lanes beside compute but that of copies for saves, which takes a core seldom.
  if (ranks == 1) return deck.checkpoint.copies_state() && cores > 1 ? LaneMode::threads : LaneMode::inline_order;
  return cores > 2 ? LaneMode::threads : LaneMode::inline_order;
}

std::unique_ptr<Executor> make_executor(const Schedule& schedule, const MemoryPlan& plan, std::array<std::byte*, tier_count> bases,
                                        LaneMode mode, [[maybe_unused]] GraphMode graphs, TaskBackend backend) {
  if (backend.backend == kernels::Backend::host) {
    TaskFunction run = backend.poison ? poisoned(schedule, plan, bases, backend) : TaskFunction(backend);
    return std::make_unique<HostExecutor>(TaskTable(schedule, plan, bases, std::move(run)), mode, watch_over_calls(backend));
  }
#ifdef TESSERA_CUDA
  std::vector<cuda::StreamKind> kinds(lane_count, cuda::StreamKind::none);
  kinds[static_cast<std::size_t>(Lane::compute)] = cuda::StreamKind::usual;
  for (const Section& section : schedule.sections)
    for (const Task& task : section.tasks)
      kinds[static_cast<std::size_t>(task.lane)] = info_of(task.lane).collective ? cuda::StreamKind::urgent : cuda::StreamKind::usual;
  auto streams = std::make_unique<cuda::Streams>(kinds);
  for (std::size_t lane = 0; lane < lane_count; ++lane) backend.streams[lane] = (*streams)[lane];
  return std::make_unique<StreamExecutor>(TaskTable(schedule, plan, bases, backend), std::move(streams), graphs,
                                          watch_over_streams(backend));
#else
  fail(ExitCode::environment, "this build has no CUDA backend: build with the cuda preset, or set run.device = \"host\"");
#endif
}

}  // namespace tessera
