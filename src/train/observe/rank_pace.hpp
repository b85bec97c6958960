// How long each rank computes in a step, over the run: from what ranks say of themselves, so that no rank waits for another's number.
#pragma once
#include <span>
#include <vector>

#include "io/metrics/metrics.hpp"
#include "topology/failure/whereabouts.hpp"

namespace tessera {

/// Of more ranks a row would be longer than all else of a run.
inline constexpr std::size_t most_paced_ranks = 1024;

class RankPace {
 public:
  /// Of each rank, by its number: seconds of a step that wait for no other rank, a mean over the steps that it has told since the last
  /// call; none of ranks that have told nothing new.
  io::NamedNumbers since_last(std::span<const Spent> ranks);

 private:
  std::vector<Spent> before_;
};

}  // namespace tessera
