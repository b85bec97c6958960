// How the state of a run's ranks lies in a checkpoint, whatever cuts its tensors between them.
#pragma once
#include <functional>
#include <map>
#include <span>

#include "io/checkpoint/saved_state.hpp"
#include "model/table/layout.hpp"

namespace tessera {

/// Ranks that keep the same boxes of the same tensors, and share each unit between them.
struct Holding {
  const Layout* layout = nullptr;
  std::vector<std::vector<int>> shards;  ///< of the checkpoint, by unit: one a rank, in order of the ranks' slices
};

/// What an optimizer keeps of rows or columns of a unit's tensors.
struct SavedLines {
  int unit = 0;   ///< of the holding
  int group = 0;  ///< of the checkpoint
  friend auto operator<=>(const SavedLines&, const SavedLines&) = default;
};
struct SavedLayout {
  io::CheckpointLayout checkpoint;
  /// Of each holding: which unit of the checkpoint each of its units is. -1: none, since all that it holds lies in holdings before.
  std::vector<std::vector<int>> units;
  /// Likewise, of what has units of its own; those that are not there lie in holdings before.
  std::vector<std::map<SavedLines, int>> lines = {};
};

/// Where anything is frozen there are twice as many shards as ranks: what steps change of rank r is shard r, and what they leave as it is
/// this one, so that a save may have the file of an earlier one for it.
constexpr int constant_shard(int rank, int ranks) { return ranks + rank; }
/// Whether a save of so many ranks has such shards.
inline bool has_constants(const io::CheckpointLayout& layout, int ranks) { return layout.shards > ranks; }

/// Numbers of the groups that a unit's tensors are in, ascending; and of those that have a number of each row or column.
struct GroupsOfUnit {
  std::vector<int> elements;
  std::vector<std::pair<int, kernels::Extent>> lines = {};
};
using GroupsOf = std::function<GroupsOfUnit(const Unit&)>;

/// A tensor that several holdings keep the same box of is saved by the first of them. Together they keep all of every tensor, and no two
/// boxes of a tensor overlap unless they are equal. Without `groups_of` all groups have all units.
SavedLayout saved_layout(std::span<const Holding> holdings, std::span<const std::string_view> groups, int shards,
                         const GroupsOf& groups_of = {});

}  // namespace tessera
