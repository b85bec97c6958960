// What differs between nodes that should be alike. Pure.
#pragma once
#include <string>
#include <vector>

#include "base/json.hpp"
#include "report/nodes/node_facts.hpp"

namespace tessera {

/// A value that few nodes have, beside that of most; of as many the first node's counts as that of most.
struct NodeDifference {
  NodeFact fact;                    ///< of these nodes; with no name: whether they have the thing at all
  std::vector<std::string> nodes;   ///< that differ
  std::string usual;                ///< the value of the others; empty: they have none
  std::vector<std::string> others;  ///< that have it
};

/// In the order of the facts. An adapter, a memory or a GPU that a node lacks is one difference.
std::vector<NodeDifference> compare_nodes(const std::vector<NodeAround>& nodes);

/// "n17: mlx5_1:1 runs at 100 Gb/s, 63 nodes at 200 Gb/s"
std::string sentence(const NodeDifference& difference);
/// A list: "says", and its parts "thing", "name", "value", "nodes", "usual", "others".
Json differences_json(const std::vector<NodeDifference>& differences);

}  // namespace tessera
