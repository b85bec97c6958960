// What differs from layer to layer, as files say it and as decks do: windows of attention, and layers that are not rotated.
#pragma once
#include <vector>

#include "base/json.hpp"
#include "deck/kinds_of_layers.hpp"
#include "families/config_reader.hpp"
#include "families/family.hpp"

namespace tessera {

/// Puts layers into a model's window, positions, pattern and kinds. Where they differ, the pattern is the shortest that says them.
void set_layers(ModelKeys& model, const std::vector<LayerKeys>& layers);

/// What the layers of a deck's model have in common.
struct LayerTraits {
  bool one_rotation = true;  ///< of all that are rotated, and [model] says it
  bool all_rotated = true;
  bool one_window = true;  ///< no two sizes of windows
  bool no_window = true, all_windows = true;
  std::int64_t window = 0;  ///< of those that have one
};
LayerTraits traits_of(const ModelKeys& model);

/// sliding_window, use_sliding_window, max_window_layers and layer_types, as the family means them.
void read_windows(ConfigReader& config, const WindowRule& rule, std::vector<LayerKeys>& layers);
/// The same keys of a model that the family has.
void put_windows(Json& config, const WindowRule& rule, const ModelKeys& model);

}  // namespace tessera
