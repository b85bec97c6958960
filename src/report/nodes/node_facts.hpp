// What a node is made of and how it is set, as far as it should be the same on all nodes of a run.
#pragma once
#include <string>
#include <vector>

namespace tessera {

/// One of a node. What may differ between nodes that are alike (names, addresses, what is free) is none.
struct NodeFact {
  std::string thing;  ///< "mlx5_1", "NUMA memory 0"; empty: the node itself
  std::string name;   ///< "speed"
  std::string value;  ///< "200 Gb/s"
  double amount = 0;  ///< of a size: two that are nearly the same count as one. 0: the value counts
  friend bool operator==(const NodeFact&, const NodeFact&) = default;
};

/// Where the system says them; a test has trees of its own.
struct NodeRoots {
  std::string sys = "/sys", proc = "/proc", shared_memory = "/dev/shm";
};

/// Of the system below `roots`: kernel, processor, memories, huge pages, governor, adapters with their links, local disks. What cannot be
/// read is left out.
std::vector<NodeFact> system_facts(const NodeRoots& roots);
/// Of this process and of NVIDIA's driver: the program, limits, GPUs.
std::vector<NodeFact> process_facts();

/// A node and its facts.
struct NodeAround {
  std::string name;  ///< its host
  std::vector<NodeFact> facts;
};
/// As one text, for another rank.
std::string pack(const NodeAround& node);
NodeAround unpack_node(const std::string& text);

}  // namespace tessera
