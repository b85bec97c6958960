// MPI's side of a World, for this folder alone.
#pragma once
#include <atomic>
#include <cstddef>
#include <functional>
#include <vector>

#include "topology/failure/floor.hpp"
#include "topology/failure/mpi.hpp"
#include "topology/failure/peers.hpp"
#include "topology/failure/watch.hpp"
#include "topology/shared/shared_block.hpp"
#include "topology/world.hpp"

namespace tessera {

struct World::Handles {
  OwnedComm world;               ///< its own: a library that uses MPI on its own cannot meet our messages
  OwnedComm node;                ///< the ranks of this node
  Peers peers;                   ///< the processes of this node
  std::unique_ptr<Watch> watch;  ///< over all ranks; null for one alone
  std::vector<std::function<void()>> ends;
  Mapping block;  ///< a NodeFloor and `peers`' marks; empty where the node's ranks cannot share memory: then each speaks for itself
  static std::size_t block_bytes(int local_ranks) {
    return sizeof(NodeFloor) + static_cast<std::size_t>(local_ranks) * sizeof(std::atomic<bool>);
  }
  NodeFloor* floor() const { return reinterpret_cast<NodeFloor*>(block.data()); }
  std::atomic<bool>* marks() const { return block ? reinterpret_cast<std::atomic<bool>*>(block.data() + sizeof(NodeFloor)) : nullptr; }
};

}  // namespace tessera
