// Who sits where: the ranks of a mesh on the nodes of a machine. Pure.
#pragma once
#include <string>

#include "topology/mesh.hpp"

namespace tessera {

/// Nodes that the ranks of one group are spread over at most; 1: each group is inside a node.
int nodes_of_groups(const Mesh& mesh, Axis axis, int ranks_per_node);

/// A line a node with its ranks and their coordinates, and a line for each axis that is cut: how large its groups are, and over how many
/// nodes each is spread.
std::string print_map(const Mesh& mesh, int ranks_per_node);

}  // namespace tessera
