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

/// What the layers of a deck's model have in common.
struct LayerTraits {
  bool one_rotation = true;  ///< of all that are rotated, and [model] says it
  bool all_rotated = true;
  bool one_window = true;  ///< no two sizes of windows
  bool no_window = true, all_windows = true;
  std::int64_t window = 0;  ///< of those that have one
  /// Layers with a window have one rotation, and all others that of [model]. All are rotated.
  bool rotation_by_window = true;
  double window_theta = 0;  ///< of the first layer with a window
  bool window_scaled = false;
  /// All layers have experts, where any has. Blocks read the stream by norms that scale by their weights, and add to it as it is; nothing
  /// is scaled or capped.
  bool usual_blocks = true;
};
LayerTraits traits_of(const ModelKeys& model);
/// Whether it is a Llama but for windows, biases of all four projections of attention and of the feed-forward block.
bool is_llama_but_for_biases(const ModelKeys& model);
/// A Phi-3: the same without biases, of whose heads a part is rotated, or by longrope.
bool is_phi3(const ModelKeys& model);
/// The model with its experts in each layer.
ModelKeys with_all_experts(ModelKeys model);
/// The model without the bias of its attention's output, where queries, keys and values have theirs: of a class with one switch for both.
ModelKeys without_output_bias(ModelKeys model);

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
