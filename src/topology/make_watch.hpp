// The watch over the ranks of a world.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "topology/failure/watch.hpp"
#include "topology/world.hpp"

namespace tessera {

struct WatchNetwork {
  WatchLinks links;
  std::vector<ProcessName> processes;  ///< by rank
  std::vector<int> unreached;          ///< ranks that rank 0 cannot hear
  std::string reason;                  ///< of the first of them, where one is known
};
/// Collective over all ranks of the tree: makes its links. `gather` gives the texts of all ranks, by rank.
WatchNetwork make_links(const WatchTree& tree, int rank, const std::vector<int>& leaders,
                        const std::function<std::vector<std::string>(const std::string&)>& gather);

/// Collective over all ranks, each with the hosts and the nodes' lowest ranks of all. Rank 0 warns once of ranks that it cannot hear.
std::unique_ptr<Watch> make_watch(const World& world, std::vector<std::string> hosts, std::vector<int> leaders);

}  // namespace tessera
