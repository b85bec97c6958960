#include "deck/schema/kinds.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "deck/schema/table_rows.hpp"

namespace tessera {
namespace {

constexpr std::string_view fields = "name, window, positions, rope_theta, rope_scaling and experts";

/// The enumerator of a text; nothing where the node is no text, or none of the words.
template <class Mode>
std::optional<Mode> mode_of(const toml::node& node) {
  const auto* text = node.as_string();
  return text ? from_word<Mode>(text->get()) : std::nullopt;
}
template <class Mode>
std::string words_of_mode() {
  std::vector<std::string> words;
  for (const std::string_view word : enum_words<Mode>) words.push_back(toml_string(word));
  return fmt::format("{}", fmt::join(words, " or "));
}

/// What is wrong with a field, after the kind's number; empty where it was read.
std::string read_field(std::string_view name, const toml::node& node, KindKeys& kind) {
  if (name == "name") {
    const auto* text = node.as_string();
    const bool letter = text && text->get().size() == 1 && std::isalpha(static_cast<unsigned char>(text->get()[0]));
    if (!letter) return "has a name that is not a letter";
    kind.name = text->get();
  } else if (name == "window") {
    const auto* number = node.as_integer();
    if (!number || number->get() < 0 || number->get() > 1 << 24) return "has a window that is not an integer from 0 (all keys)";
    kind.window = number->get();
  } else if (name == "rope_theta") {
    const auto number = node.value<double>();
    if (!number || !(*number > 1 && *number <= 1e12)) return "has a rope_theta that is not a number above 1";
    kind.rope_theta = *number;
  } else if (name == "positions") {
    kind.positions = mode_of<PositionMode>(node);
    if (!kind.positions) return fmt::format("has positions that are not {}", words_of_mode<PositionMode>());
  } else if (name == "rope_scaling") {
    kind.rope_scaling = mode_of<RopeMode>(node);
    if (!kind.rope_scaling) return fmt::format("has a rope_scaling that is not {}", words_of_mode<RopeMode>());
  } else if (name == "experts") {
    const auto* truth = node.as_boolean();
    if (!truth) return "has experts that are not true or false";
    kind.experts = truth->get();
  } else {
    return fmt::format("has {}, which is not one of {}", shortened(std::string(name)), fields);
  }
  return "";
}

std::string read_kind(const toml::table& table, KindKeys& kind) {
  for (const auto& [name, node] : table)
    if (const std::string fault = read_field(name.str(), node, kind); !fault.empty()) return fault;
  if (kind.name.empty()) return "has no name; give it a letter of model.pattern";
  if (kind.positions == PositionMode::none && (kind.rope_theta || kind.rope_scaling))
    return "has a rotation, but positions = \"none\" uses none; leave one out";
  return "";
}

}  // namespace

Literal read_kinds(const toml::array& tables) { return read_rows(tables, "kind", read_kind); }

std::string kinds_text(const std::vector<KindKeys>& kinds) {
  std::vector<std::string> tables;
  for (const KindKeys& kind : kinds) {
    std::string text = fmt::format("name = {}", toml_string(kind.name));
    if (kind.window) text += fmt::format(", window = {}", *kind.window);
    if (kind.positions) text += fmt::format(", positions = {}", toml_string(word_of(*kind.positions)));
    if (kind.rope_theta) text += fmt::format(", rope_theta = {}", shortest(*kind.rope_theta));
    if (kind.rope_scaling) text += fmt::format(", rope_scaling = {}", toml_string(word_of(*kind.rope_scaling)));
    if (kind.experts) text += fmt::format(", experts = {}", *kind.experts);
    tables.push_back("{ " + text + " }");
  }
  return fmt::format("[{}]", fmt::join(tables, ", "));
}

const KindKeys* ModelKeys::kind_of(std::int64_t layer) const {
  if (pattern.empty()) return nullptr;
  const std::string name(1, pattern[static_cast<std::size_t>(layer) % pattern.size()]);
  const auto kind = std::ranges::find(kinds, name, &KindKeys::name);
  return kind == kinds.end() ? nullptr : &*kind;
}

bool ModelKeys::has_experts(std::int64_t layer) const {
  const KindKeys* kind = kind_of(layer);
  return experts > 0 && layer >= dense_layers && (!kind || kind->experts.value_or(true));
}

bool any_dense(const ModelKeys& m) {
  return m.experts == 0 || m.dense_layers > 0 ||
         std::ranges::any_of(m.kinds, [](const KindKeys& kind) { return !kind.experts.value_or(true); });
}

std::vector<LayerKeys> keys_of_layers(const ModelKeys& m) {
  std::vector<LayerKeys> layers;
  for (std::int64_t layer = 0; layer < m.layers; ++layer) {
    LayerKeys keys{.window = m.window, .positions = m.positions, .rope_theta = m.rope_theta, .rope_scaling = m.rope_scaling};
    keys.experts = layer >= m.dense_layers;
    if (const KindKeys* kind = m.kind_of(layer)) {
      keys.window = kind->window.value_or(keys.window);
      keys.positions = kind->positions.value_or(keys.positions);
      keys.rope_theta = kind->rope_theta.value_or(keys.rope_theta);
      keys.rope_scaling = kind->rope_scaling.value_or(keys.rope_scaling);
      keys.experts = keys.experts && kind->experts.value_or(true);
    }
    layers.push_back(keys);
  }
  return layers;
}

std::int64_t rotated_features(const ModelKeys& m) { return static_cast<std::int64_t>(static_cast<double>(m.head_dim) * m.rotary_fraction); }

std::string describe_layers(const ModelKeys& m) {
  const std::vector<LayerKeys> layers = keys_of_layers(m);
  std::vector<std::pair<LayerKeys, int>> kinds;
  for (LayerKeys keys : layers) {
    keys.experts = true;  // which other words tell of
    const auto known = std::ranges::find(kinds, keys, &std::pair<LayerKeys, int>::first);
    known == kinds.end() ? void(kinds.emplace_back(keys, 1)) : void(++known->second);
  }
  const bool learned = m.learned_positions > 0;  // of which the layers know nothing
  if (kinds.size() == 1 && layers[0].window == 0 && (learned || layers[0].positions == PositionMode::rope)) return "";
  const auto differ = [&](const auto& field) {
    return std::ranges::any_of(kinds, [&](const auto& kind) { return kind.first.*field != kinds[0].first.*field; });
  };
  std::vector<std::string> texts;
  for (const auto& [keys, count] : kinds) {
    std::string text =
        keys.window == 0 ? fmt::format("{} that see all tokens", count) : fmt::format("{} with a window of {} tokens", count, keys.window);
    if (keys.positions == PositionMode::none) {
      texts.push_back(learned ? text : text + ", without positions");
      continue;
    }
    if (differ(&LayerKeys::rope_theta)) text += fmt::format(", base {}", shortest(keys.rope_theta));
    if (differ(&LayerKeys::rope_scaling))
      text += keys.rope_scaling == RopeMode::none ? ", not scaled" : fmt::format(", scaled by {}", word_of(keys.rope_scaling));
    texts.push_back(text);
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

std::string describe_dense(const ModelKeys& m) {
  std::vector<std::string> runs;
  for (std::int64_t layer = 0; layer < m.layers; ++layer) {
    const std::int64_t first = layer;
    while (layer < m.layers && !m.has_experts(layer)) ++layer;
    if (layer > first) runs.push_back(layer == first + 1 ? fmt::format("{}", first) : fmt::format("{} to {}", first, layer - 1));
  }
  if (runs.empty()) return "none";
  constexpr std::size_t most = 12;
  if (runs.size() > most) runs.resize(most), runs.emplace_back("..");
  return fmt::format("{}", fmt::join(runs, ", "));
}

}  // namespace tessera
