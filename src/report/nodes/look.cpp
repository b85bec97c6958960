#include "report/nodes/look.hpp"

#include <algorithm>
#include <map>

namespace tessera {

std::vector<NodeAround> look_at_nodes(const World& world, const NodeRoots& roots) {
  std::string mine;
  world.together([&] {
    if (world.place().local_rank != 0) return;
    NodeAround node{world.place().host, system_facts(roots)};
    const std::vector<NodeFact> more = process_facts();
    node.facts.insert(node.facts.end(), more.begin(), more.end());
    mine = pack(node);
  });
  std::vector<NodeAround> nodes;
  std::vector<int> first_ranks;
  std::map<std::string, int> hosts;
  const std::vector<std::string> all = world.gather_text(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    nodes.push_back(unpack_node(all[rank]));
    first_ranks.push_back(static_cast<int>(rank));
    ++hosts[nodes.back().name];
  }
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (hosts[nodes[i].name] > 1) nodes[i].name += fmt::format(" (rank {})", first_ranks[i]);
  return nodes;
}

}  // namespace tessera
