#include "topology/failure/watch_tree.hpp"

#include <algorithm>
#include <map>

namespace tessera {
namespace {

// With the link to the parent the first rank of a node has as many as it may.
constexpr std::size_t most_nodes_below = 31, most_below_in_node = 32;
static_assert(most_nodes_below + most_below_in_node + 1 == most_links);

}  // namespace

WatchTree::WatchTree(std::span<const int> leaders) : parents_(leaders.size(), -1), children_(leaders.size()) {
  std::map<int, std::vector<int>> nodes;
  for (std::size_t rank = 0; rank < leaders.size(); ++rank) nodes[leaders[rank]].push_back(static_cast<int>(rank));
  // Both kinds of trees are heaps: member i hangs below member (i - 1) / k.
  const auto hang = [this](const std::vector<int>& members, std::size_t most) {
    for (std::size_t i = 1; i < members.size(); ++i) parents_[static_cast<std::size_t>(members[i])] = members[(i - 1) / most];
  };
  std::vector<int> firsts;
  for (const auto& [leader, members] : nodes) {
    firsts.push_back(leader);
    hang(members, most_below_in_node);
  }
  hang(firsts, most_nodes_below);
  for (std::size_t rank = 1; rank < parents_.size(); ++rank)
    children_[static_cast<std::size_t>(parents_[rank])].push_back(static_cast<int>(rank));
}

int WatchTree::way_down(int from, int to) const {
  for (int above = to; above >= 0; to = above) {
    above = parent(to);
    if (above == from) return to;
  }
  return -1;
}

}  // namespace tessera
