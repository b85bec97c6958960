#include "topology/devices/numa.hpp"

#include <hwloc.h>

#include "topology/devices/binding.hpp"

namespace tessera {

std::vector<NumaNode> numa_nodes() {
  std::vector<NumaNode> nodes;
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return nodes;
  if (hwloc_topology_load(topology) == 0) {
    const int count = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
    for (int i = 0; i < count; ++i) {
      const hwloc_obj_t node = hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, static_cast<unsigned>(i));
      std::vector<int> units;
      for (int u = hwloc_bitmap_first(node->cpuset); u >= 0; u = hwloc_bitmap_next(node->cpuset, u)) units.push_back(u);
      nodes.push_back({static_cast<int>(node->os_index), static_cast<std::int64_t>(node->attr->numanode.local_memory), unit_ranges(units)});
    }
  }
  hwloc_topology_destroy(topology);
  return nodes;
}

}  // namespace tessera
