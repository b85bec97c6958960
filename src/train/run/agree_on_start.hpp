// The run folder and the checkpoint that a start begins from, as all ranks agree on them.
#pragma once
#include "deck/deck.hpp"
#include "topology/world.hpp"
#include "train/folder/run_folder.hpp"

namespace tessera {

/// Collective. Waits until no other start holds the folder.
StartPoint agree_on_start(const World& world, const Deck& deck);

}  // namespace tessera
