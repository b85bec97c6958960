// Whether a checkpoint is of a deck's model and optimizer. What is not is Error(checkpoint), which names the first difference.
#pragma once
#include <vector>

#include "deck/deck.hpp"
#include "io/checkpoint/saved_state.hpp"
#include "model/table/parameters.hpp"

namespace tessera {

/// Without the optimizer's moments, as `tessera import` writes it.
bool has_weights_alone(const io::SavedState& from);

/// A tensor of the model that the checkpoint lacks or has in another shape, or one that the model lacks. Adapters of a run may begin beside
/// weights alone.
void require_same_model(const std::vector<Parameter>& table, const io::SavedState& from);

/// What other optimizers keep means nothing to those of the deck: all of them, and where groups of the deck name several, each tensor's.
void require_same_state(const Deck& deck, const std::vector<Parameter>& table, const io::SavedState& from);

}  // namespace tessera
