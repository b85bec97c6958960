// Where communicators come from: one for each lane and group of ranks, on the fastest path that its ranks have.
#pragma once
#include <memory>
#include <string>

#include "topology/communicators/communicator.hpp"
#include "topology/mesh.hpp"
#include "topology/node.hpp"
#include "topology/world.hpp"

namespace tessera {

enum class CommunicatorPath : std::uint8_t { fastest, mpi, nccl };

struct CommunicatorOptions {
  std::string lane = "main";   ///< named in messages
  const Node* node = nullptr;  ///< one for all lanes; without it there is no shared memory. It must outlive the communicator.
  CommunicatorPath path = CommunicatorPath::fastest;
  bool hierarchical = true;    ///< a group over several nodes moves bytes through shared memory inside them
  double timeout_seconds = 0;  ///< 0: the world's
  int most_blocks = 0;         ///< of a GPU that a collective may take; 0: as NCCL likes. NCCL_MAX_CTAS of the environment stands above it
};

/// fastest: nothing to do for a group of one rank, shared memory where its ranks are on one node, shared memory and
/// MPI where they are on several of as many ranks each, else MPI. nccl: for memory of the GPUs
/// that the ranks are bound to (bind_gpu), of one rank too.
/// Collective over the group, from one thread, in the same order. The result may be used by one thread at a time; several communicators may
/// be used at the same time from different threads. It must not outlive the world.
std::unique_ptr<Communicator> make_communicator(const World& world, const Group& group, const CommunicatorOptions& options = {});

}  // namespace tessera
