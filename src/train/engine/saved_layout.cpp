#include "train/engine/saved_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace tessera {
namespace {

/// Ranks that keep different boxes of a layer have units of one name.
void name_apart(std::vector<io::CheckpointUnit>& units) {
  std::map<std::string, int> total, named;
  for (const io::CheckpointUnit& unit : units) ++total[unit.name];
  for (io::CheckpointUnit& unit : units)
    if (const std::string name = unit.name; total[name] > 1) unit.name = fmt::format("{}.part-{}", name, named[name]++);
}

}  // namespace

SavedLayout saved_layout(std::span<const Holding> holdings, std::span<const std::string_view> groups, int shards,
                         const GroupsOfUnit& groups_of_unit) {
  SavedLayout saved;
  io::CheckpointLayout& checkpoint = saved.checkpoint;
  checkpoint.groups.assign(groups.begin(), groups.end()), checkpoint.shards = shards;
  std::vector<int> all(static_cast<std::size_t>(shards));
  std::iota(all.begin(), all.end(), 0);
  std::map<std::string, std::size_t> tensors;  // by name
  for (const Holding& holding : holdings) {
    std::vector<int>& numbers = saved.units.emplace_back();
    for (std::size_t u = 0; u < holding.layout->units.size(); ++u) {
      const Unit& unit = holding.layout->units[u];
      const std::vector<int> holders = holding.shards[u] == all ? std::vector<int>() : holding.shards[u];
      // A unit that holdings share between them is one.
      const auto shared = std::ranges::find_if(checkpoint.units, [&](const io::CheckpointUnit& known) {
        return unit.owners != data_axes && known.name == unit.name && known.holders == holders;
      });
      const int number = static_cast<int>(shared - checkpoint.units.begin());
      if (shared != checkpoint.units.end()) {
        numbers.push_back(number);
        continue;
      }
      bool saves = false;
      for (const Slot& slot : unit.slots) {
        const Parameter& p = holding.layout->table[static_cast<std::size_t>(slot.parameter)];
        const auto [at, fresh] = tensors.try_emplace(p.name, checkpoint.tensors.size());
        if (fresh) checkpoint.tensors.emplace_back(p.name, p.shape, std::vector<io::CheckpointPiece>());
        std::vector<io::CheckpointPiece>& pieces = checkpoint.tensors[at->second].pieces;
        if (std::ranges::any_of(pieces, [&](const io::CheckpointPiece& piece) { return piece.box == slot.box; })) continue;
        pieces.push_back({number, slot.offset, slot.box});
        saves = true;
      }
      numbers.push_back(saves ? number : -1);
      if (!saves) continue;
      checkpoint.units.push_back({unit.name, unit.elements, holders});
      if (!groups_of_unit) continue;
      if (const std::vector<int> those = groups_of_unit(unit); those.size() < groups.size()) checkpoint.units.back().groups = those;
    }
  }
  name_apart(checkpoint.units);
  return saved;
}

}  // namespace tessera
