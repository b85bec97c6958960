// Collectives of a group that spans nodes: inside a node through shared memory, between nodes each byte once.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "topology/communicators/communicator.hpp"
#include "topology/failure/mpi.hpp"
#include "topology/node.hpp"

namespace tessera {

/// A group as nodes with equal numbers of members.
struct NodeGrid {
  int nodes = 1, node = 0;   ///< how many nodes, and which is this rank's
  std::vector<int> members;  ///< local ranks of the members on this node
};

/// Collective over the group, which `flat` spans by MPI; ranks of a node are consecutive in it. Nothing on all ranks, with a reason, when
/// the ranks of some node cannot share memory.
/// Gathers, reduce-scatters and all-reduces have `flat`'s results to the bit; small ones, broadcasts and all-to-alls are `flat`'s.
std::unique_ptr<Communicator> make_hierarchical_communicator(MPI_Comm comm, std::unique_ptr<Communicator> flat, const Node& node,
                                                             NodeGrid grid, const std::string& label, double timeout_seconds,
                                                             const Peers* peers, std::string& reason);

}  // namespace tessera
