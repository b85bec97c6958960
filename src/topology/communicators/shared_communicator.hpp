// Collectives between the ranks of one node through shared memory.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "topology/communicators/communicator.hpp"
#include "topology/failure/mpi.hpp"
#include "topology/node.hpp"

namespace tessera {

/// Collective over `comm`, whose ranks are all on the node and whose local ranks are `members`. Nothing on all ranks, with a reason, when
/// the node's ranks cannot share memory at all.
std::unique_ptr<Communicator> make_shared_communicator(MPI_Comm comm, const Node& node, std::vector<int> members, const std::string& label,
                                                       double timeout_seconds, std::string& reason);

}  // namespace tessera
