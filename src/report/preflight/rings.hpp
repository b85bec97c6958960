// Who meets whom, so that of many ranks that exchange the slow one can be told: each rank meets two neighbours of a ring, one after the
// other, and counts by the faster of both meetings. A slow rank is slow in both; its neighbours have one that is not.
#pragma once
#include <vector>

namespace tessera {

inline constexpr int most_ring_rounds = 3;  ///< a ring of an odd number of ranks has a pair that meets alone

/// Ranks of this ring that meet `rank`, by round; -1: none then.
std::vector<int> partners_in_ring(const std::vector<int>& ring, int rank);

/// From each rank's node: the rings of which a rank is one.
struct RingsOfRank {
  std::vector<int> inside;  ///< the ranks of its node
  std::vector<int> across;  ///< of each node the rank that has as many before it on its node, where there are several
};
RingsOfRank rings_of(const std::vector<int>& nodes, int rank);

}  // namespace tessera
