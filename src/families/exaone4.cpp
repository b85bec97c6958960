// EXAONE 4: norms of what blocks add to the stream, and of the queries and keys of each head. Where some layers have windows, the others
// are not rotated.
#include <algorithm>
#include <array>

#include "families/layers.hpp"

namespace tessera {
namespace {

/// The class asks whether there is a size of windows, not whether a layer has one.
void read_rotated_windows(ConfigReader& config, std::vector<LayerKeys>& layers) {
  if (config.is_null("sliding_window")) return;
  for (LayerKeys& keys : layers)
    if (keys.window == 0) keys.positions = PositionMode::none;
}

constexpr auto exaone4_names =
    std::to_array<TensorName>({{"layers.#.attention.post_norm", "model.layers.#.post_attention_layernorm.weight"},
                               {"layers.#.mlp.post_norm", "model.layers.#.post_feedforward_layernorm.weight"}});

}  // namespace

Family exaone4_family() {
  return {.type = "exaone4",
          .architecture = "Exaone4ForCausalLM",
          .standard = {.kv_heads = 32, .norm_eps = 1e-5, .qk_norm = true, .norm_placement = NormPlacement::post},
          .window = {.key = WindowRule::Key::always,
                     .standard = 4096,
                     .lists = true,
                     .slides = slides_but_each,
                     .number_key = "sliding_window_pattern",
                     .number = 4},
          .read_layers = read_rotated_windows,
          .names = exaone4_names};
}

}  // namespace tessera
