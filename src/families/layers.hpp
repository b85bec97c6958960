// What differs from layer to layer, as files say it and as decks do: windows of attention, layers that are not rotated or have no experts.
#pragma once
#include <initializer_list>
#include <vector>

#include "base/json.hpp"
#include "deck/kinds_of_layers.hpp"
#include "families/config_reader.hpp"
#include "families/family.hpp"

namespace tessera {

/// Puts layers into a model's window, positions, pattern and kinds. Where they differ, the pattern is the shortest that says them.
void set_layers(ModelKeys& model, std::vector<LayerKeys> layers);

/// Of the first layer of a model that has a window.
struct WindowTraits {
  std::int64_t size = 0;  ///< 0: none has
  double theta = 0;       ///< of its rotation
  bool scaled = false;
};
WindowTraits windows_of(const ModelKeys& model);

/// WindowRule::slides where of so many layers the last sees all keys.
bool slides_but_each(std::int64_t layer, std::int64_t pattern);

/// 1 / x, a whole number where it is one but for rounding.
double inverse_of(double x);

/// A note of each of these keys whose file, or whose class where the file does not say it, asks for dropout in training.
void note_dropout(ConfigReader& config, std::initializer_list<const char*> keys, double standard);

/// sliding_window, use_sliding_window, max_window_layers and layer_types, as the family means them.
void read_windows(ConfigReader& config, const WindowRule& rule, std::vector<LayerKeys>& layers);
/// The same keys of a model that the family has.
void put_windows(Json& config, const WindowRule& rule, const ModelKeys& model);

}  // namespace tessera
