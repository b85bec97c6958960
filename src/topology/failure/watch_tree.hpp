// Who has a link to whom: few each, however many ranks there are.
#pragma once
#include <span>
#include <vector>

namespace tessera {

/// Connections of a rank at most.
inline constexpr int most_links = 64;

/// Rank 0 is the root. The first ranks of the nodes hang below it and below each other; the other ranks of a node below its first one.
class WatchTree {
 public:
  WatchTree() = default;
  /// `leaders`: by rank the lowest one of its node.
  explicit WatchTree(std::span<const int> leaders);

  int ranks() const { return static_cast<int>(parents_.size()); }
  /// -1 of rank 0.
  int parent(int rank) const { return parents_[static_cast<std::size_t>(rank)]; }
  /// Rising.
  const std::vector<int>& children(int rank) const { return children_[static_cast<std::size_t>(rank)]; }
  /// The child of `from` by which `to` is reached; -1 where it is not below.
  int way_down(int from, int to) const;

 private:
  std::vector<int> parents_;
  std::vector<std::vector<int>> children_;
};

}  // namespace tessera
