// A training run from its deck to its last checkpoint.
#pragma once
#include "deck/deck.hpp"
#include "topology/world.hpp"

namespace tessera {

/// Collective over the world. Returns the exit status: 0 when all steps are done, 75 when a signal stopped the run after its state was
/// saved.
int run_training(World& world, const ParsedDeck& parsed);

}  // namespace tessera
