// MPI's side of a Launch, for this folder alone.
#pragma once
#include <map>
#include <optional>
#include <vector>

#include "topology/failure/mpi.hpp"
#include "topology/launch.hpp"

namespace tessera {

struct Launch::Handles {
  OwnedComm all;                    ///< a duplicate of MPI_COMM_WORLD
  std::map<int, OwnedComm> parts;   ///< of the first so many ranks, which have met once
  std::vector<int> leaders;         ///< by rank the lowest one on its node
  std::optional<StartWatch> start;  ///< until a world stands, or somebody waits for one
  /// Collective over the ranks below `ranks`.
  MPI_Comm first(int ranks);
};

}  // namespace tessera
