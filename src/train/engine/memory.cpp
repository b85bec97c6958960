#include "train/engine/memory.hpp"

#include <algorithm>
#include <exception>

#include "kernels/elementwise/elementwise.hpp"
#include "train/engine/device.hpp"

namespace tessera {

RankMemory::RankMemory(const RunPlan& plan, const TierBytes& room, Node* node, const Communicators& communicators)
    : plan_(plan), on_gpu_(plan.schedule.shape.backend == kernels::Backend::cuda), node_(node) {
  for (std::size_t t = 0; t < tier_count; ++t) {
    const Tier tier = static_cast<Tier>(t);
    if (room[t] == 0 || tier == Tier::nvme || tier == Tier::copies) continue;  // those are files
    // Without a GPU the tier that kernels use is the host's, of which collectives touch what they like.
    const Tier from = tier != Tier::device || on_gpu_ ? tier : plan.request.mesh.ranks() > 1 ? Tier::shared : Tier::host;
    // Beside a GPU the host holds little: a new run need not wait for its pages.
    arenas_[t] = Arena(from, static_cast<std::size_t>(room[t]), fmt::format("tessera.{}", name_of(tier)),
                       on_gpu_ ? FirstTouch::when_used : FirstTouch::now);
    if (from == Tier::shared) shared_ = &arenas_[t];
  }
  make_disk();
  if (node_ && shared_) node_->register_arena(*shared_);
  if (const Arena& device = arena(Tier::device); on_gpu_ && device.bytes() > 0)
    for (Communicator* communicator : communicators.all())
      registered_.emplace_back(*communicator, std::span(device.data(), device.bytes()));
}

RankMemory::~RankMemory() {
  if (node_ && shared_ && std::uncaught_exceptions() == 0) node_->unregister_arena(*shared_);
}

void RankMemory::make_disk() {
  const auto bytes = plan_.memory.bytes[static_cast<std::size_t>(Tier::nvme)];
  if (bytes == 0) return;
  io::SpillOptions options = spill_options(plan_.request.deck, plan_.request.rank);
  options.bytes = bytes;
  const auto memory_of = [&](int buffer) {
    return std::span(address(buffer), static_cast<std::size_t>(plan_.schedule.buffers[static_cast<std::size_t>(buffer)].bytes));
  };
  options.staging = memory_of(plan_.schedule.find_buffer("nvme.requests"));
  for (const Section& section : plan_.schedule.sections)
    for (const Task& task : section.tasks)
      for (const Use& use : task.uses) {
        const Buffer& buffer = plan_.schedule.buffers[static_cast<std::size_t>(use.buffer)];
        const bool moves = std::holds_alternative<ReadDisk>(task.op) || std::holds_alternative<WriteDisk>(task.op);
        if (moves && buffer.tier != Tier::nvme && buffer.life != Life::run && std::ranges::none_of(options.memory, [&](auto known) {
              return known.data() == address(use.buffer) && known.size() == static_cast<std::size_t>(buffer.bytes);
            }))
          options.memory.push_back(memory_of(use.buffer));
      }
  disk_ = std::make_unique<Disk>(options, static_cast<double>(plan_.request.deck.topology.collective_timeout));
}

std::byte* RankMemory::address(int buffer, std::int64_t offset) const {
  const auto b = static_cast<std::size_t>(buffer);
  if (plan_.schedule.buffers[b].tier == Tier::nvme) return disk_->base() + plan_.memory.offset[b] + offset;
  return arena(plan_.schedule.buffers[b].tier).data() + plan_.memory.offset[b] + offset;
}

int RankMemory::host_side(const std::string& buffer) const {
  const int twin = plan_.schedule.find_buffer("host." + buffer);
  return twin >= 0 ? twin : plan_.schedule.find_buffer(buffer);
}

bool RankMemory::on_host(int buffer) const {
  const Tier tier = plan_.schedule.buffers[static_cast<std::size_t>(buffer)].tier;
  return tier != Tier::nvme && (!on_gpu_ || tier != Tier::device);
}

/// Of one on a disk.
const std::string& RankMemory::buffer_at(const void* address) const {
  const std::int64_t at = static_cast<const std::byte*>(address) - disk_->base();
  const std::vector<Buffer>& buffers = plan_.schedule.buffers;
  for (std::size_t b = 0; b < buffers.size(); ++b)
    if (const std::int64_t offset = plan_.memory.offset[b]; buffers[b].tier == Tier::nvme && offset <= at && at < offset + buffers[b].bytes)
      return buffers[b].name;
  fail(ExitCode::internal, "no buffer is at byte {} of the spill file", at);
}

void RankMemory::copy(void* to, const void* from, std::int64_t bytes) const {
  if (disk_ && disk_->holds(to))
    return disk_->write(std::array{Disk::Move{static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes}}, buffer_at(to));
  if (disk_ && disk_->holds(from))
    return disk_->read(std::array{Disk::Move{static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes}}, buffer_at(from));
  kernels::Context context;
  context.backend = plan_.schedule.shape.backend;
  kernels::copy(context, to, from, static_cast<std::size_t>(bytes));
  wait_for_device(context.backend);  // CUDA promises not even of pageable memory that it has been read
}

std::array<std::byte*, tier_count> RankMemory::bases() const {
  std::array<std::byte*, tier_count> bases{};
  for (std::size_t t = 0; t < tier_count; ++t)
    if (arenas_[t].bytes() > 0) bases[t] = arenas_[t].data();
  if (disk_) bases[static_cast<std::size_t>(Tier::nvme)] = disk_->base();
  return bases;
}

void RankMemory::clear_from(const TierBytes& first) const {
  for (std::size_t t = 0; t < tier_count; ++t) {
    const Arena& all = arenas_[t];
    const auto begin = static_cast<std::size_t>(first[t]);
    if (all.bytes() <= begin) continue;
    kernels::Context context;
    context.backend = static_cast<Tier>(t) == Tier::device ? plan_.schedule.shape.backend : kernels::Backend::host;
    kernels::fill_zero(context, all.data() + begin, all.bytes() - begin);
  }
  wait_for_device(plan_.schedule.shape.backend);
}

}  // namespace tessera
