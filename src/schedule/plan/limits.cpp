#include "schedule/plan/limits.hpp"

#include <fmt/format.h>

#include "base/types.hpp"

namespace tessera {

const char* name_of(MemoryKind kind) { return kind == MemoryKind::device ? "device" : "host"; }

std::int64_t bytes_of(const TierBytes& tiers, MemoryKind kind) {
  const auto of = [&](Tier tier) { return tiers[static_cast<std::size_t>(tier)]; };
  return kind == MemoryKind::device ? of(Tier::device) : of(Tier::host) + of(Tier::shared) + of(Tier::pinned);
}

MemoryKind kernel_memory(const Deck& deck) {
  return deck.run.device == "cuda" || deck.zero.offload_optimizer.device != "none" ? MemoryKind::device : MemoryKind::host;
}

void lower(std::optional<MemoryLimit>& limit, const MemoryLimit& other) {
  if (!limit || other.bytes < limit->bytes) limit = other;
}

MemoryLimits stated_limits(const Deck& deck, int ranks) {
  MemoryLimits limits;
  auto &gpu = limits[static_cast<std::size_t>(MemoryKind::device)], &host = limits[static_cast<std::size_t>(MemoryKind::host)];
  if (deck.memory.host_limit > 0) lower(host, {deck.memory.host_limit, "memory.host_limit"});
  if (deck.memory.device == 0) return limits;
  if (deck.run.device != "cuda")
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
  return fmt::format("the plan needs {} {} and {} is {}: {} too much", human_bytes(static_cast<double>(needed)),
                     kind == MemoryKind::device ? "of the device on each rank" : "of the host on each rank", limit.source,
                     human_bytes(static_cast<double>(limit.bytes)), human_bytes(static_cast<double>(needed - limit.bytes)));
}

std::vector<Shortfall> shortfalls(const TierBytes& needed, const MemoryLimits& limits) {
  std::vector<Shortfall> found;
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::host})
    if (const auto& limit = limits[static_cast<std::size_t>(kind)]; limit && bytes_of(needed, kind) > limit->bytes)
      found.push_back({kind, bytes_of(needed, kind), *limit});
  return found;
}

std::string print_shortfalls(const std::vector<Shortfall>& lacking) {
  std::string text;
  for (const Shortfall& shortfall : lacking) text += shortfall.text() + ". ";
  return text;
}

}  // namespace tessera
