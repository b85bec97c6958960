// Traits of a model: the keys of [model] that the trained function depends on. A trait is a row of schema_model.cpp that says what reads
// it.
#pragma once
#include <string>
#include <vector>

#include "deck/kinds_of_layers.hpp"
#include "deck/schema/schema.hpp"

namespace tessera {

/// A key that two models have with other values, as a deck writes them.
struct TraitDifference {
  const Key* key;
  std::string mine, other;
};

/// Where the functions of two models differ, but for what keys_of_layers says. Reals are the same but for rounding, a scale of 0 is the one
/// that it stands for, and a width that nothing has is none.
std::vector<TraitDifference> differing_traits(const ModelKeys& mine, const ModelKeys& other);

/// keys_of_layers without experts, which describe_dense tells of, and without angles of layers that rotate nothing.
std::vector<LayerKeys> attention_of_layers(const ModelKeys& model);

/// The same in all that is trained, layers and experts too.
bool same_function(const ModelKeys& mine, const ModelKeys& other);

/// Puts a key's value of one model into another.
void copy_key(const Key& key, const Deck& from, Deck& to);

}  // namespace tessera
