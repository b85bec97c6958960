// Keys of [optimizer] that one optimizer reads: its row of the table of optimizers names them, and the schema has the rest.
#pragma once
#include <functional>
#include <utility>

#include "deck/schema/schema.hpp"

namespace tessera {

/// The rows of the keys that an update of this type reads, in the order of the schema.
std::vector<const Key*> keys_of_update(std::string_view type);
/// Puts the type's own defaults into a deck's [optimizer], but for keys that `keeps` says.
void set_update_defaults(
    Deck& deck, const std::function<bool(const Key&)>& keeps = [](const Key&) { return false; });
/// What an update of this type has where a deck is silent.
UpdateKeys default_update(std::string_view type);
/// Those keys alone that `type` reads, so that updates that do the same are equal.
UpdateKeys keys_alone(const UpdateKeys& keys, std::string_view type);
/// A deck whose [optimizer] is this, for what finds its fields by the schema.
Deck deck_of_update(const UpdateKeys& keys);
/// What a group says of its optimizer: names, and values as text.
std::vector<std::pair<std::string_view, std::string>> given_keys(const OptimizerGroup& group);

}  // namespace tessera
