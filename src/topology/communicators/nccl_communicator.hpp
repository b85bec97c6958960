// Collectives between GPUs.
#pragma once
#include <memory>
#include <string>

#include "topology/communicators/communicator.hpp"
#include "topology/failure/mpi.hpp"

namespace tessera {

/// On the GPU that this process uses. `comm` carries the unique id, and belongs to the result. `peers` are watched during waits. `label`
/// names lane and axis in messages. Throws Error(lost) when NCCL has not come up on all ranks within `timeout_seconds`.
std::unique_ptr<Communicator> make_nccl_communicator(OwnedComm comm, const std::string& label, double timeout_seconds, const Peers* peers,
                                                     int most_blocks = 0);

}  // namespace tessera
