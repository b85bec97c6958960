#include "schedule/plan/limits.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/types.hpp"

namespace tessera {

void lower(std::optional<MemoryLimit>& limit, const MemoryLimit& other) {
  if (!limit || other.bytes < limit->bytes) limit = other;
}

MemoryLimits stated_limits(const Deck& deck, int ranks) {
  MemoryLimits limits;
  auto &gpu = limits[static_cast<std::size_t>(MemoryKind::device)], &host = limits[static_cast<std::size_t>(MemoryKind::host)];
  if (deck.memory.host > 0) lower(host, {deck.memory.host, "memory.host"});
  if (deck.memory.pinned > 0) lower(limits[static_cast<std::size_t>(MemoryKind::pinned)], {deck.memory.pinned, "memory.pinned"});
  if (deck.memory.device == 0) return limits;
  if (deck.run.device != RunDevice::cuda)
    return lower(kernel_memory(deck) == MemoryKind::device ? gpu : host, {deck.memory.device, "memory.device"}), limits;
  const std::int64_t reserve = GpuReserve{}.bytes(ranks);
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
  return fmt::format("the plan needs {} {} and {} is {}: {} too much", human_bytes(static_cast<double>(needed)),
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
