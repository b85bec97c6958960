// The memories of a node, and which cores each is near to.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

struct NumaNode {
  int number = 0;          ///< the operating system's
  std::int64_t bytes = 0;  ///< 0: not known
  std::string units;       ///< processing units near it: "0-31,64-95"
};

/// Through hwloc; what cannot be read is left out.
std::vector<NumaNode> numa_nodes();

}  // namespace tessera
