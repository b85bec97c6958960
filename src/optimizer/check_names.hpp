// Names in a deck that only the model's tensors and values can tell.
#pragma once
#include "deck/deck.hpp"

namespace tessera {

/// Adds to the faults of a deck that has none yet what model.freeze, lora.targets, optimizer.groups and activation.keep call by names that
/// its model does not have. Whoever builds the model finds them too, later and one at a time.
void check_names(ParsedDeck& parsed);

}  // namespace tessera
