// Collectives over MPI on host buffers: between nodes, and inside a node where memory cannot be shared.
#pragma once
#include <memory>
#include <string>

#include "topology/communicators/communicator.hpp"
#include "topology/failure/mpi.hpp"

namespace tessera {

/// `peers` are watched during waits. `label` names the lane and axis in messages. The communicator belongs to the result.
std::unique_ptr<Communicator> make_mpi_communicator(OwnedComm comm, const std::string& label, double timeout_seconds, const Peers* peers);

}  // namespace tessera
