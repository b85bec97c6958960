// What the keys of [model], its pattern and its kinds make of each layer.
#pragma once
#include <string>
#include <vector>

#include "deck/deck.hpp"

namespace tessera {

/// What may differ from layer to layer.
struct LayerKeys {
  std::int64_t window = 0;  ///< keys that a query sees at most; 0: all before it
  PositionMode positions = PositionMode::rope;
  double rope_theta = 10000;
  RopeMode rope_scaling = RopeMode::none;
  friend bool operator==(const LayerKeys&, const LayerKeys&) = default;
};

/// Of each layer, in their order. A letter that names no kind is taken as one that differs in nothing: a deck with it is refused.
std::vector<LayerKeys> keys_of_layers(const ModelKeys& model);

/// Features of a head that rotations turn, as transformers counts them: the whole number below.
std::int64_t rotated_features(const ModelKeys& model);

/// "20 with a window of 1024 tokens; 4 that see all tokens"; empty where all layers see all tokens and are rotated.
std::string describe_layers(const ModelKeys& model);

}  // namespace tessera
