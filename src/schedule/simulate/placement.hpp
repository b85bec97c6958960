// How a run is laid over a machine, as far as it decides how fast tasks are.
#pragma once
#include "machine/profile.hpp"
#include "topology/mesh.hpp"

namespace tessera {

struct Placement {
  Mesh mesh;
  int ranks_per_node = 1;
  /// Lanes run beside each other; else one thread runs all tasks in the order of the list.
  bool lanes_side_by_side = true;

  int ranks() const { return mesh.ranks(); }
};

}  // namespace tessera
