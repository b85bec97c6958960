#include "zero/partition.hpp"

#include <algorithm>

namespace tessera {

std::int64_t stage_of_unit(std::int64_t stage, const Unit& unit) {
  return unit.owners & pipeline_ends ? std::min<std::int64_t>(stage, 1) : stage;
}

UnitStorage unit_storage(int of_run, const Unit& unit, int shards) {
  if (shards == 1 || !unit.trained) return {};
  const std::int64_t stage = stage_of_unit(of_run, unit);
  return {.parameters_whole = stage < 3 || unit.persistent, .gradients_whole = stage < 2, .optimizer_whole = stage < 1};
}

Range owned_range(const Layout& layout, int unit, int rank) {
  const std::int64_t n = layout.shard_elements(unit);
  return {rank * n, (rank + 1) * n};
}

std::vector<Range> cut_shard(std::int64_t shard_elements, int shards, std::int64_t bucket) {
  const std::int64_t piece = std::max(shard_block, bucket / shards / shard_block * shard_block);
  std::vector<Range> pieces;
  for (std::int64_t begin = 0; begin < shard_elements; begin += piece) pieces.push_back({begin, std::min(shard_elements, begin + piece)});
  return pieces;
}

std::vector<Range> padding_of(const Unit& unit) {
  std::vector<Range> gaps;
  std::int64_t at = 0;
  for (const Slot& slot : unit.slots) {
    if (slot.offset > at) gaps.push_back({at, slot.offset});
    at = slot.offset + slot.elements;
  }
  if (at < unit.elements) gaps.push_back({at, unit.elements});
  return gaps;
}

}  // namespace tessera
