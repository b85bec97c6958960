// The facts of the nodes of a launch, each told by its first rank.
#pragma once
#include "report/nodes/node_facts.hpp"
#include "topology/world.hpp"

namespace tessera {

/// Of each node, on all ranks. Collective over the world. Hosts that count as several nodes are told apart by their ranks.
std::vector<NodeAround> look_at_nodes(const World& world, const NodeRoots& roots = {});

}  // namespace tessera
