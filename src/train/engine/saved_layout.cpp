#include "train/engine/saved_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace tessera {
namespace {

/// Ranks that keep different boxes of a layer have units of one name.
void name_apart(std::vector<io::CheckpointUnit>& units) {
  std::map<std::string, int> total, named;
  for (const io::CheckpointUnit& unit : units) ++total[unit.name];
  for (io::CheckpointUnit& unit : units)
    if (const std::string name = unit.name; total[name] > 1) unit.name = fmt::format("{}.part-{}", name, named[name]++);
}

/// Units of what is kept of rows and columns: ranks that an axis cuts a matrix between have all of it, and the first of them saves it. A
/// unit that holdings share between them has one.
void add_lines(SavedLayout& saved, std::span<const Holding> holdings, const GroupsOf& groups_of, const std::vector<int>& all) {
  io::CheckpointLayout& checkpoint = saved.checkpoint;
  std::set<std::pair<int, std::string>> known;   // group and tensor
  std::map<std::pair<int, int>, int> of_shared;  // of a unit of elements and a group
  for (std::size_t h = 0; h < holdings.size(); ++h) {
    const Holding& holding = holdings[h];
    std::map<SavedLines, int>& numbers = saved.lines.emplace_back();
    for (int u = 0; u < static_cast<int>(holding.layout->units.size()); ++u) {
      const Unit& unit = holding.layout->units[static_cast<std::size_t>(u)];
      for (const auto& [group, extent] : groups_of(unit).lines) {
        const int elements = saved.units[h][static_cast<std::size_t>(u)];
        if (const auto found = of_shared.find({elements, group}); elements >= 0 && found != of_shared.end()) {
          numbers[{u, group}] = found->second;
          continue;
        }
        const bool rows = extent == kernels::Extent::row;
        const std::vector<LinesBefore> before = lines_before(*holding.layout, unit);
        const int number = static_cast<int>(checkpoint.units.size());
        bool saves = false;
        for (std::size_t s = 0; s < unit.slots.size(); ++s) {
          const Parameter& p = holding.layout->table[static_cast<std::size_t>(unit.slots[s].parameter)];
          if (unit.slots[s].elements == 0 || !known.emplace(group, p.name).second) continue;
          checkpoint.tensors.emplace_back(p.name, Shape{p.shape.dims[rows ? 0 : 1]}, number, rows ? before[s].rows : before[s].columns);
          saves = true;
        }
        if (!saves) continue;
        const std::vector<int>& shards = holding.shards[static_cast<std::size_t>(u)];
        checkpoint.units.push_back({fmt::format("{}.{}", unit.name, rows ? "rows" : "columns"),
                                    rows ? before.back().rows : before.back().columns,
                                    shards == all ? std::vector<int>() : shards,
                                    {group}});
        numbers[{u, group}] = number;
        of_shared[{elements, group}] = number;
      }
    }
  }
}

}  // namespace

SavedLayout saved_layout(std::span<const Holding> holdings, std::span<const std::string_view> groups, int shards,
                         const GroupsOf& groups_of) {
  SavedLayout saved;
  io::CheckpointLayout& checkpoint = saved.checkpoint;
  checkpoint.groups.assign(groups.begin(), groups.end()), checkpoint.shards = shards;
  std::vector<int> all(static_cast<std::size_t>(shards));
  std::iota(all.begin(), all.end(), 0);
  std::map<std::string, std::size_t> tensors;  // by name
  for (const Holding& holding : holdings) saved.units.emplace_back(holding.layout->units.size(), -1);
  const auto add = [&](std::size_t h, bool of_towers) {
    const Holding& holding = holdings[h];
    std::vector<int>& numbers = saved.units[h];
    for (std::size_t u = 0; u < holding.layout->units.size(); ++u) {
      const Unit& unit = holding.layout->units[u];
      if (unit.tower.empty() == of_towers) continue;
      const std::vector<int> holders = holding.shards[u] == all ? std::vector<int>() : holding.shards[u];
      // A unit that holdings share between them is one.
      const auto shared = std::ranges::find_if(checkpoint.units, [&](const io::CheckpointUnit& known) {
        return unit.owners != data_axes && known.name == unit.name && known.holders == holders;
      });
      const int number = static_cast<int>(shared - checkpoint.units.begin());
      if (shared != checkpoint.units.end()) {
        numbers[u] = number;
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
      if (!saves) continue;
      numbers[u] = number;
      checkpoint.units.push_back({unit.name, unit.elements, holders});
      if (!groups_of) continue;
      if (const std::vector<int> those = groups_of(unit).elements; those.size() < groups.size()) checkpoint.units.back().groups = those;
    }
  };
  // Weights come first: what saves of weights alone leave out stands behind them.
  for (const bool of_towers : {false, true})
    for (std::size_t h = 0; h < holdings.size(); ++h) add(h, of_towers);
  if (groups_of) add_lines(saved, holdings, groups_of, all);
  name_apart(checkpoint.units);
  return saved;
}

}  // namespace tessera
