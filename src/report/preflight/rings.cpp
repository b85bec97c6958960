#include "report/preflight/rings.hpp"

#include <algorithm>
#include <map>

namespace tessera {

std::vector<int> partners_in_ring(const std::vector<int>& ring, int rank) {
  std::vector<int> partners(most_ring_rounds, -1);
  const std::size_t size = ring.size();
  const std::size_t pairs = size < 2 ? 0 : size == 2 ? 1 : size;  // of two ranks both neighbours are one
  for (std::size_t at = 0; at < pairs; ++at) {
    const int one = ring[at], other = ring[(at + 1) % size];
    const std::size_t round = size % 2 == 1 && at + 1 == size ? 2 : at % 2;
    if (one == rank) partners[round] = other;
    if (other == rank) partners[round] = one;
  }
  return partners;
}

RingsOfRank rings_of(const std::vector<int>& nodes, int rank) {
  std::map<int, int> before;  // of each node: ranks so far
  std::vector<int> places;
  for (const int node : nodes) places.push_back(before[node]++);
  const auto mine = static_cast<std::size_t>(rank);
  RingsOfRank rings;
  for (std::size_t other = 0; other < nodes.size(); ++other) {
    if (nodes[other] == nodes[mine]) rings.inside.push_back(static_cast<int>(other));
    if (places[other] == places[mine]) rings.across.push_back(static_cast<int>(other));
  }
  return rings;
}

}  // namespace tessera
