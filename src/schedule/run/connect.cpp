#include "base/backend.hpp"
#ifdef TESSERA_CUDA
#include "schedule/run/connect.hpp"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/clock.hpp"
#include "kernels/cuda/devices.hpp"
#include "kernels/cuda/streams.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "memory/arena.hpp"
#include "schedule/run/operations.hpp"
#include "topology/failure/patience.hpp"

namespace tessera {
namespace {

constexpr std::int64_t few = 256, widest = 8;  // elements of a rank's block; bytes of one at most

/// Device memory for the largest group: what is received, what is sent, workspace.
class Memory {
 public:
  explicit Memory(int members)
      : part_(members * few * widest), memory_(Tier::device, static_cast<std::size_t>(3 * part_), "tessera.connect") {
    kernels::cuda::fill_zero({}, memory_.data(), memory_.bytes());
    cuda::synchronize();
  }
  std::byte* received() const { return memory_.data(); }
  std::byte* sent() const { return memory_.data() + part_; }
  std::span<std::byte> workspace() const { return {memory_.data() + 2 * part_, static_cast<std::size_t>(part_)}; }

 private:
  std::int64_t part_;
  Arena memory_;
};

void wait_for(Communicator& communicator, void* stream) {
  Patience patience;
  while (!cuda::idle(stream)) {
    communicator.check(patience.waited());
    usleep(100);
  }
}

}  // namespace

void connect(const Communicators& communicators, const Schedule& schedule) {
  // In an order that all ranks of a group share, as their communicators were made.
  std::set<std::tuple<Lane, Axes, CollectiveKind, DType, bool>> calls;
  for (const Section& section : schedule.sections)
    for (const Task& task : section.tasks)
      if (const auto* c = std::get_if<Collective>(&task.op)) calls.insert({task.lane, c->axes, c->kind, c->dtype, c->accumulate});
  int members = 2;
  for (const Communicator* c : communicators.all()) members = std::max(members, c->size());
  const Memory memory(members);
  const cuda::Streams streams({cuda::StreamKind::usual});
  const kernels::Context context{memory.workspace(), schedule.shape.deterministic, kernels::Backend::cuda, streams[0]};
  for (const auto& [lane, axes, kind, dtype, accumulate] : calls) {
    Communicator& group = communicators.at(lane, axes);
    run_collective(group, {.kind = kind, .axes = axes, .count = few, .dtype = dtype, .accumulate = accumulate}, memory.received(),
                   memory.sent(), context);
    wait_for(group, streams[0]);
  }
  for (const auto& [lane, peer] : wanted_communicators(schedule).links) {
    Communicator& link = communicators.link(lane, peer);
    for (const int root : {0, 1}) link.broadcast(memory.received(), few, DType::f32, root, context);
    wait_for(link, streams[0]);
  }
}

}  // namespace tessera
#else
#include "schedule/run/connect.hpp"

namespace tessera {
void connect(const Communicators&, const Schedule&) {}  // host ranks connect as they are made
}  // namespace tessera
#endif
