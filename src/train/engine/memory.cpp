#include "train/engine/memory.hpp"

#include <exception>

#include "kernels/elementwise/elementwise.hpp"
#include "train/device.hpp"

namespace tessera {

RankMemory::RankMemory(const RunPlan& plan, Node* node, const Communicators& communicators)
    : plan_(plan), on_gpu_(plan.schedule.shape.backend == kernels::Backend::cuda), node_(node) {
  for (std::size_t t = 0; t < tier_count; ++t) {
    if (plan.memory.bytes[t] == 0) continue;
    const Tier tier = static_cast<Tier>(t);
    // Without a GPU the tier that kernels use is the host's, of which collectives touch what they like.
    const Tier from = tier != Tier::device || on_gpu_ ? tier : plan.request.data.size > 1 ? Tier::shared : Tier::host;
    // Beside a GPU the host holds little: a new run need not wait for its pages.
    arenas_[t] = Arena(from, static_cast<std::size_t>(plan.memory.bytes[t]), fmt::format("tessera.{}", name_of(tier)),
                       on_gpu_ ? FirstTouch::when_used : FirstTouch::now);
    if (from == Tier::shared) shared_ = &arenas_[t];
  }
  if (plan.request.training())
    TESSERA_REQUIRE(used_bytes() == plan.memory.bytes, "the bytes that tasks touch differ from the planned ones");
  if (node_ && shared_) node_->register_arena(*shared_);
  if (const Arena& device = arena(Tier::device); on_gpu_ && device.bytes() > 0)
    for (Communicator* communicator : communicators.all())
      registered_.emplace_back(*communicator, std::span(device.data(), device.bytes()));
}

RankMemory::~RankMemory() {
  if (node_ && shared_ && std::uncaught_exceptions() == 0) node_->unregister_arena(*shared_);
}

std::byte* RankMemory::address(int buffer, std::int64_t offset) const {
  const auto b = static_cast<std::size_t>(buffer);
  return arena(plan_.schedule.buffers[b].tier).data() + plan_.memory.offset[b] + offset;
}

int RankMemory::host_side(const std::string& buffer) const {
  const int twin = plan_.schedule.find_buffer("host." + buffer);
  return twin >= 0 ? twin : plan_.schedule.find_buffer(buffer);
}

bool RankMemory::on_host(int buffer) const {
  return !on_gpu_ || plan_.schedule.buffers[static_cast<std::size_t>(buffer)].tier != Tier::device;
}

void RankMemory::copy(void* to, const void* from, std::int64_t bytes) const {
  kernels::Context context;
  context.backend = plan_.schedule.shape.backend;
  kernels::copy(context, to, from, static_cast<std::size_t>(bytes));
  wait_for_device(context.backend);  // CUDA promises not even of pageable memory that it has been read
}

std::array<std::byte*, tier_count> RankMemory::bases() const {
  std::array<std::byte*, tier_count> bases{};
  for (std::size_t t = 0; t < tier_count; ++t)
    if (arenas_[t].bytes() > 0) bases[t] = arenas_[t].data();
  return bases;
}

std::array<std::int64_t, tier_count> RankMemory::used_bytes() const {
  std::array<std::int64_t, tier_count> used{};
  for (const Section& section : plan_.schedule.sections)
    for (const Task& task : section.tasks)
      for (const Use& use : task.uses) {
        const Buffer& buffer = plan_.schedule.buffers[static_cast<std::size_t>(use.buffer)];
        const std::int64_t end = use.in_slot ? buffer.bytes : use.offset + use.bytes;
        auto& most = used[static_cast<std::size_t>(buffer.tier)];
        most = std::max(most, round_up(plan_.memory.offset[static_cast<std::size_t>(use.buffer)] + end, plan_alignment));
      }
  return used;
}

}  // namespace tessera
