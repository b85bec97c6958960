// The watch over the ranks of a world.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "topology/failure/watch.hpp"
#include "topology/world.hpp"

namespace tessera {

/// Collective over all ranks, each with the hosts of all: makes the links. Rank 0 warns once of ranks that it cannot reach.
std::unique_ptr<Watch> make_watch(const World& world, std::vector<std::string> hosts);

}  // namespace tessera
