// SmolLM3: a Llama of which some layers, each fourth, do not rotate queries and keys.
#include <fmt/format.h>

#include "families/layers.hpp"

namespace tessera {
namespace {

/// no_rope_layers has 1 for a layer that is rotated; without it each layer of a number that the interval divides is not.
void read_rotated(ConfigReader& config, std::vector<LayerKeys>& layers) {
  const std::int64_t interval = config.whole("no_rope_layer_interval", 4);
  const JsonNode* rotated = config.find("no_rope_layers");
  if (rotated && rotated->children.size() != layers.size())
    return config.fault("no_rope_layers",
                        fmt::format("has {} layers, but num_hidden_layers is {}", rotated->children.size(), layers.size()));
  if (!rotated && interval < 1) return config.fault("no_rope_layer_interval", "is not a number of layers");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const bool rotates = rotated ? config.whole(rotated->children[i]) != 0 : (static_cast<std::int64_t>(i) + 1) % interval != 0;
    if (!rotates) layers[i].positions = PositionMode::none;
  }
}

void put_rotated(Json& c, const ModelKeys& m) {
  auto rotated = Json::array();
  for (const LayerKeys& keys : keys_of_layers(m)) rotated.push_back(keys.positions == PositionMode::rope ? 1 : 0);
  c["no_rope_layers"] = rotated;
  c["use_sliding_window"] = false;
}

}  // namespace

Family smollm3_family() {
  return {.type = "smollm3",
          .architecture = "SmolLM3ForCausalLM",
          .turn = 2,
          .standard = {.kv_heads = 4, .norm_eps = 1e-6, .tied = true, .rope_theta = 2e6},
          .window = {.key = WindowRule::Key::switched, .lists = true},
          .read_layers = read_rotated,
          .put_layers = put_rotated};
}

}  // namespace tessera
