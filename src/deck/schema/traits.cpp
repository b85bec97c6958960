#include "deck/schema/traits.hpp"

#include <algorithm>
#include <cmath>

#include "deck/schema/value.hpp"

namespace tessera {
namespace {

/// Files say some scales by their inverse or its root.
bool is_nearly(double a, double b) { return std::abs(a - b) <= 1e-12 * std::max(std::abs(a), std::abs(b)); }

bool is_same(const Key& key, Deck& a, Deck& b) {
  if (const auto* real = std::get_if<double& (*)(Deck&)>(&key.field)) return is_nearly((*real)(a), (*real)(b));
  return value_text(key, a) == value_text(key, b);
}

/// With 0 for the scales that 0 stands for.
ModelKeys with_usual_scales(ModelKeys m) {
  if (is_nearly(m.attention_scale, 1 / std::sqrt(static_cast<double>(m.head_dim)))) m.attention_scale = 0;
  if (is_nearly(m.embedding_scale, std::sqrt(static_cast<double>(m.width)))) m.embedding_scale = 0;
  return m;
}

}  // namespace

std::vector<LayerKeys> attention_of_layers(const ModelKeys& m) {
  std::vector<LayerKeys> layers = keys_of_layers(m);
  const LayerKeys plain;
  for (LayerKeys& keys : layers) {
    keys.experts = true;
    if (keys.positions == PositionMode::none) keys.rope_theta = plain.rope_theta, keys.rope_scaling = plain.rope_scaling;
  }
  return layers;
}

std::vector<TraitDifference> differing_traits(const ModelKeys& mine, const ModelKeys& other) {
  Deck here, there;
  here.model = with_usual_scales(mine), there.model = with_usual_scales(other);
  const bool has_width = mine.experts == 0 || other.experts == 0 || any_dense(mine) || any_dense(other);
  const std::vector<LayerKeys> layers = attention_of_layers(mine);
  const bool same_layers = !layers.empty() && layers == attention_of_layers(other);
  const bool rotates = !same_layers || std::ranges::count(layers, PositionMode::rope, &LayerKeys::positions) > 0;
  const auto is_read = [&](const Key& key) {
    if (key.name == "model.ff_width") return has_width;
    if (key.name == "model.rope_theta" || key.name == "model.rope_scaling") return !same_layers;  // each layer's kind may say its own
    return rotates || (key.read_by != ReadBy::angles && key.read_by != ReadBy::rotation);
  };
  std::vector<TraitDifference> differences;
  for (const Key& key : deck_keys())
    if (!key.theirs.empty() && !is_same(key, here, there) && is_read(key))
      differences.push_back({&key, value_text(key, here), value_text(key, there)});
  return differences;
}

bool same_function(const ModelKeys& mine, const ModelKeys& other) {
  return differing_traits(mine, other).empty() && describe_dense(mine) == describe_dense(other) &&
         attention_of_layers(mine) == attention_of_layers(other);
}

void copy_key(const Key& key, const Deck& from, Deck& to) {
  if (const auto* mode = std::get_if<ModeField>(&key.field)) return mode->write(to, mode->read(from));
  std::visit(
      [&](const auto& field) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(field)>, ModeField>)
          field(to) = field(const_cast<Deck&>(from));  // which is only read
      },
      key.field);
}

}  // namespace tessera
