#include "schedule/plan/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.hpp"
#include "base/types.hpp"
#include "schedule/task.hpp"
#include "topology/mesh.hpp"

namespace tessera {

void lower(std::optional<MemoryLimit>& limit, const MemoryLimit& other) {
  if (!limit || other.bytes < limit->bytes) limit = other;
}

Communication communication_of(const Deck& deck, int ranks) {
  if (ranks <= 1) return {};
  Mesh mesh;
  try {
    MeshKeys keys = deck.mesh;
    keys.dp = 0;  // of another number of ranks what the other axes leave
    mesh = make_mesh(keys, ranks, deck.zero.hpz_partition_size);
  } catch (const Error&) {
    return {};
  }
  const auto size = [&](Axes set) {
    int n = 1;
    for (const Axis axis : all_axes) n *= contains(set, axis) ? mesh.size(axis) : 1;
    return n;
  };
  const Axes replicas = axes({Axis::replicate});
  std::set<std::pair<Lane, Axes>> groups;
  const auto add = [&](Lane lane, Axes set) {
    if (size(set) > 1) groups.insert({lane, set});
  };
  const auto of_owners = [&](Axes owners) {
    add(Lane::reduce, owners);
    if (!mesh.shares_state) add(Lane::reduce, replicas);
    if (deck.zero.stage == 0) return;
    const bool copies = mesh.shares_state && deck.zero.stage == 3 && (owners & replicas);
    add(Lane::gather, copies ? static_cast<Axes>(owners & ~replicas) : owners);
    if (copies) add(Lane::gather, replicas);
  };
  of_owners(owner_axes(mesh));
  if (mesh.size(Axis::tp) > 1) of_owners(static_cast<Axes>(owner_axes(mesh) | axes({Axis::tp})));  // tensors that tp does not cut
  if (deck.model.experts > 0) of_owners(expert_owner_axes(mesh));
  Axes all = data_axes;  // norms and losses
  for (const Axis axis : all_axes)
    if (mesh.size(axis) > 1) all |= axes({axis});
  add(Lane::reduce, all);
  add(Lane::tensor, axes({Axis::tp})), add(Lane::context, axes({Axis::cp})), add(Lane::experts, axes({Axis::ep}));
  int communicators = static_cast<int>(groups.size());
  if (mesh.size(Axis::pp) > 1) {
    // Streams and gradients have a neighbour each way, at the ends one alone. What both ends use is reduced and published by itself.
    const int shared = !deck.model.tied ? 0 : deck.zero.stage > 0 ? 2 : 1;
    const int at_ends = (deck.pipeline.schedule == PipelineSchedule::interleaved ? 4 : 2) + shared;
    communicators += mesh.size(Axis::pp) == 2 ? at_ends : std::max(at_ends, 4);
  }
  return {communicators, mesh.size(Axis::cp) > 1 || mesh.size(Axis::ep) > 1 || (mesh.size(Axis::tp) > 1 && deck.run.reproducible)};
}

MemoryLimits stated_limits(const Deck& deck, int ranks) {
  MemoryLimits limits;
  auto &gpu = limits[static_cast<std::size_t>(MemoryKind::device)], &host = limits[static_cast<std::size_t>(MemoryKind::host)];
  if (deck.memory.host > 0) lower(host, {deck.memory.host, "memory.host"});
  if (deck.memory.pinned > 0) lower(limits[static_cast<std::size_t>(MemoryKind::pinned)], {deck.memory.pinned, "memory.pinned"});
  if (deck.memory.device == 0) return limits;
  if (deck.run.device != RunDevice::cuda)
    return lower(kernel_memory(deck) == MemoryKind::device ? gpu : host, {deck.memory.device, "memory.device"}), limits;
  const std::int64_t reserve = GpuReserve{}.bytes(communication_of(deck, ranks));
  lower(gpu, {std::max<std::int64_t>(0, deck.memory.device - reserve),
              fmt::format("memory.device ({}) without {} for CUDA{} and libraries", human_bytes(static_cast<double>(deck.memory.device)),
                          human_bytes(static_cast<double>(reserve)), ranks > 1 ? ", NCCL" : "")});
  return limits;
}

MemoryLimits with_room_left(MemoryLimits found, const MemoryLimits& stated) {
  constexpr auto host = static_cast<std::size_t>(MemoryKind::host);
  if (found[host] && !stated[host]) {
    found[host]->bytes -= found[host]->bytes / 8;
    found[host]->source = "seven eighths of " + found[host]->source;
  }
  return found;
}

std::string Shortfall::text() const {
  static constexpr const char* whose[memory_kinds] = {"of the device on each rank", "of the host on each rank",
                                                      "of the host's memory pinned on each rank", "of disks for each rank"};
  return fmt::format("the plan needs {} {}, but {} is {}: {} too much", human_bytes(static_cast<double>(needed)),
                     whose[static_cast<std::size_t>(kind)], limit.source, human_bytes(static_cast<double>(limit.bytes)),
                     human_bytes(static_cast<double>(needed - limit.bytes)));
}

std::vector<Shortfall> shortfalls(const TierBytes& needed, const MemoryLimits& limits) {
  std::vector<Shortfall> found;
  for (const MemoryKind kind : all_memory_kinds)
    if (const auto& limit = limits[static_cast<std::size_t>(kind)]; limit && bytes_of(needed, kind) > limit->bytes)
      found.push_back({kind, bytes_of(needed, kind), *limit});
  return found;
}

std::vector<Shortfall> shortfalls(const Deck& deck, TierBytes needed, const MemoryLimits& limits) {
  if (deck.run.device != RunDevice::cuda && deck.memory.device == 0)
    needed[static_cast<std::size_t>(Tier::host)] += std::exchange(needed[static_cast<std::size_t>(Tier::device)], 0);
  return shortfalls(needed, limits);
}

std::string print_shortfalls(const std::vector<Shortfall>& lacking) {
  std::string text;
  for (const Shortfall& shortfall : lacking) text += shortfall.text() + ". ";
  return text;
}

}  // namespace tessera
