// MPI's side of a World, for this folder and for the parallel HDF5 file access.
#pragma once
#include "topology/mpi.hpp"
#include "topology/world.hpp"

namespace tessera {

struct World::Handles {
  OwnedComm world;  ///< a duplicate of MPI_COMM_WORLD: a library that uses MPI on its own cannot meet our messages
  OwnedComm node;   ///< the ranks of this node
};

}  // namespace tessera
