#include "families/layers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

/// A letter for a kind: D is dense, L has a window, G sees all keys, N is not rotated; then any that is left.
std::string letter_of(const LayerKeys& keys, const std::string& taken) {
  std::string wishes = !keys.experts ? "D" : keys.positions == PositionMode::none ? "N" : keys.window > 0 ? "L" : "G";
  wishes += "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  return std::string(1, wishes[wishes.find_first_not_of(taken)]);
}

/// What a kind says where it differs from the model.
KindKeys kind_of(const std::string& name, const LayerKeys& keys, const ModelKeys& m) {
  KindKeys kind{.name = name};
  if (keys.window != m.window) kind.window = keys.window;
  if (keys.positions != m.positions) kind.positions = keys.positions;
  if (!keys.experts) kind.experts = false;
  if (keys.positions == PositionMode::none) return kind;
  if (keys.rope_theta != m.rope_theta) kind.rope_theta = keys.rope_theta;
  if (keys.rope_scaling != m.rope_scaling) kind.rope_scaling = keys.rope_scaling;
  return kind;
}

/// The shortest text that makes this one, again and again, up to its length.
std::string shortest_pattern(const std::string& letters) {
  for (std::size_t period = 1; period < letters.size(); ++period) {
    const auto again = [&](std::size_t i) { return letters[i] == letters[i % period]; };
    std::size_t same = period;
    while (same < letters.size() && again(same)) ++same;
    if (same == letters.size()) return letters.substr(0, period);
  }
  return letters;
}

bool slides(const JsonNode& type) { return type.is("sliding_attention"); }

/// That all of layer_types are layers of attention, in a class of others.
void require_attention(ConfigReader& config, const JsonNode* types, std::string_view attention, std::size_t layers) {
  constexpr std::string_view missing = "layers of another kind than attention, Mamba's state-space layers, are not in this version";
  if (!types) return config.fault("layer_types", fmt::format("is missing, and without it all are; {}", missing));
  if (types->kind != JsonNode::Kind::list) return config.wrong(*types, "a list of kinds of layers");
  for (const JsonNode& type : types->children)
    if (!type.is(attention) && !type.is("full_attention"))
      return config.fault("layer_types", fmt::format("a layer is {}; {}, \"{}\" is", type.literal.str().substr(0, 60), missing, attention));
  if (types->children.size() != layers)
    config.fault("layer_types", fmt::format("has {} layers, but num_hidden_layers is {}", types->children.size(), layers));
}

/// Of layer_types; nothing where the list says something else than these two.
std::optional<std::vector<bool>> listed(ConfigReader& config, const JsonNode& types, std::size_t layers) {
  if (types.kind != JsonNode::Kind::list)
    return config.wrong(types, "a list of \"full_attention\" and \"sliding_attention\""), std::nullopt;
  std::vector<bool> windows;
  for (const JsonNode& type : types.children) {
    if (!slides(type) && !type.is("full_attention")) {
      config.fault("layer_types", fmt::format("a layer of {} is not in this version; \"full_attention\" and \"sliding_attention\" are",
                                              type.literal.str().substr(0, 60)));
      return std::nullopt;
    }
    windows.push_back(slides(type));
  }
  if (windows.size() == layers) return windows;
  config.fault("layer_types", fmt::format("has {} layers, but num_hidden_layers is {}", windows.size(), layers));
  return std::nullopt;
}

}  // namespace

void set_layers(ModelKeys& m, std::vector<LayerKeys> layers) {
  m.pattern.clear(), m.kinds.clear();
  if (layers.empty()) return;
  // Layers without experts that are the first ones are a number, not a kind.
  const auto first = std::ranges::find(layers, true, &LayerKeys::experts);
  const bool first_alone = std::all_of(first, layers.end(), [](const LayerKeys& keys) { return keys.experts; });
  m.dense_layers = first_alone ? first - layers.begin() : 0;
  for (LayerKeys& keys : layers) keys.experts |= first_alone;
  const bool same = std::ranges::all_of(layers, [&](const LayerKeys& keys) { return keys == layers[0]; });
  m.window = same ? layers[0].window : 0, m.positions = same ? layers[0].positions : PositionMode::rope;
  if (same) return;
  std::string letters;
  std::vector<LayerKeys> known;
  for (const LayerKeys& keys : layers) {
    auto found = static_cast<std::size_t>(std::ranges::find(known, keys) - known.begin());
    if (found == known.size()) {
      std::string taken;
      for (const KindKeys& kind : m.kinds) taken += kind.name;
      known.push_back(keys), m.kinds.push_back(kind_of(letter_of(keys, taken), keys, m));
    }
    letters += m.kinds[found].name;
  }
  m.pattern = shortest_pattern(letters);
}

void note_dropout(ConfigReader& config, std::initializer_list<const char*> keys, double standard) {
  for (const char* key : keys)
    if (config.real(key, standard) != 0) config.unused(std::string(key) + " (there is no dropout in this version)");
}

WindowTraits windows_of(const ModelKeys& m) {
  for (const LayerKeys& keys : keys_of_layers(m))
    if (keys.window > 0) return {.size = keys.window, .theta = keys.rope_theta, .scaled = keys.rope_scaling != RopeMode::none};
  return {.theta = m.rope_theta};
}

bool slides_but_each(std::int64_t layer, std::int64_t pattern) { return pattern > 0 && (layer + 1) % pattern != 0; }

double inverse_of(double x) {
  const double value = 1 / x, whole = std::round(value);
  return std::abs(value - whole) < 1e-12 * value ? whole : value;
}

void read_windows(ConfigReader& config, const WindowRule& rule, std::vector<LayerKeys>& layers) {
  using enum WindowRule::Key;
  const JsonNode* types = config.find("layer_types");
  if (!rule.attention.empty()) return require_attention(config, types, rule.attention, layers.size());
  if (rule.key == none) {
    if (types) {
      const auto windows = listed(config, *types, layers.size());
      if (windows && std::ranges::find(*windows, true) != windows->end())
        config.fault("layer_types", "sets windows, but the class of this model_type computes none");
    }
    return;
  }
  const JsonNode* size = config.find("sliding_window");
  std::int64_t window = size ? config.whole(*size) : config.is_null("sliding_window") ? 0 : rule.standard;
  if (window < 0) config.fault("sliding_window", "is not a number of tokens"), window = 0;
  std::int64_t first = 28;  // of Qwen's classes
  bool on = true;
  if (rule.key == switched) on = config.truth("use_sliding_window", false), first = config.whole("max_window_layers", first);
  if (const JsonNode* number = rule.number_key.empty() ? nullptr : config.find(rule.number_key); !number)
    first = rule.number > 0 ? rule.number : first;
  else if (!types)  // a list says it all, and some files have a text here beside one
    first = config.whole(*number);
  std::vector<bool> windows;
  for (std::size_t i = 0; i < layers.size(); ++i)
    windows.push_back(on && window > 0 && (!rule.slides || rule.slides(static_cast<std::int64_t>(i), first)));
  if (types) {
    const auto said = listed(config, *types, layers.size());
    if (!said) return;
    const bool any = std::ranges::find(*said, true) != said->end();
    if (rule.lists && any && (!on || window == 0))
      return config.fault("layer_types", "sets windows, but sliding_window or use_sliding_window turns them off");
    if (rule.lists)
      windows = *said;
    else if (*said != windows)
      return config.fault("layer_types",
                          "sets other windows than sliding_window, the only key that the class of this model_type reads; leave it out");
  }
  for (std::size_t i = 0; i < layers.size(); ++i) layers[i].window = windows[i] ? window : 0;
}

void put_windows(Json& c, const WindowRule& rule, const ModelKeys& m) {
  using enum WindowRule::Key;
  const std::int64_t size = windows_of(m).size;
  if (rule.key == none || (rule.key == switched && size == 0)) return;
  if (rule.key == switched) c["use_sliding_window"] = true;
  c["sliding_window"] = size == 0 ? Json() : Json(size);
  if (!rule.lists) {
    if (rule.key == switched) c["max_window_layers"] = 0;
    return;
  }
  std::int64_t whole = 0;  // layers before the first window
  auto types = Json::array();
  const std::vector<LayerKeys> layers = keys_of_layers(m);
  for (const LayerKeys& keys : layers) types.push_back(keys.window > 0 ? "sliding_attention" : "full_attention");
  while (whole < static_cast<std::int64_t>(layers.size()) && layers[static_cast<std::size_t>(whole)].window == 0) ++whole;
  if (rule.key == switched) c["max_window_layers"] = whole;
  c["layer_types"] = types;
}

}  // namespace tessera
