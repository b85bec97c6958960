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
  bool experts = true;  ///< those of the model, where it has any
  friend bool operator==(const LayerKeys&, const LayerKeys&) = default;
};

/// Of each layer, in their order. A letter that names no kind is taken as one that differs in nothing: a deck with it is refused.
std::vector<LayerKeys> keys_of_layers(const ModelKeys& model);

/// Whether a layer has one feed-forward block, of model.ff_width.
bool any_dense(const ModelKeys& model);

/// Features of a head that rotations turn, as transformers counts them: the whole number below.
std::int64_t rotated_features(const ModelKeys& model);

/// "20 with a window of 1024 tokens; 4 that see all tokens"; empty where all layers see all tokens and are rotated.
std::string describe_layers(const ModelKeys& model);
/// Layers without experts of a model that has some: "0 to 2, 5", or "none".
std::string describe_dense(const ModelKeys& model);

}  // namespace tessera
