// Kinds of layers: what pattern and kinds say of each other, and which keys none of the layers reads.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "deck/kinds_of_layers.hpp"
#include "deck/rules/draft.hpp"

namespace tessera {
namespace {

std::string names_of(const std::vector<KindKeys>& kinds) {
  std::vector<std::string_view> names;
  for (const KindKeys& kind : kinds) names.push_back(kind.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

/// What is wrong with the kinds of a pattern, and an empty text where nothing is.
std::string fault_of_kinds(const ModelKeys& m) {
  if (m.kinds.empty())
    return fmt::format("names kinds of layers, but there is no [[model.kinds]]; add a table for each letter, or leave model.pattern out");
  if (m.pattern.empty())
    return fmt::format("model.kinds has {}, but model.pattern assigns it to no layer; set model.pattern, for example \"{}\"",
                       m.kinds.size() == 1 ? "a kind" : fmt::format("{} kinds", m.kinds.size()), m.kinds.front().name);
  std::set<std::string> names;
  for (const KindKeys& kind : m.kinds) names.insert(kind.name);
  for (const char letter : m.pattern)
    if (!names.contains(std::string(1, letter)))
      return fmt::format("model.pattern has {}, but model.kinds has {}; add a table for it, or write another letter",
                         toml_string(std::string(1, letter)), names_of(m.kinds));
  names.clear();
  for (const KindKeys& kind : m.kinds) {
    if (!names.insert(kind.name).second) return fmt::format("model.kinds has two tables named {}; give each its own letter", kind.name);
    const std::size_t at = m.pattern.find(kind.name);
    if (at == m.pattern.npos || static_cast<std::int64_t>(at) >= m.layers)
      return fmt::format("model.kinds has {}, but model.pattern {} gives it to none of the {} layers; leave the table out", kind.name,
                         toml_string(m.pattern), m.layers);
    const bool other = kind.rope_scaling && *kind.rope_scaling != RopeMode::none && *kind.rope_scaling != m.rope_scaling;
    if (other)
      return fmt::format(
          "kind {} has rope_scaling {}, and model.rope_scaling is {}: only [model] sets a scaling. Set model.rope_scaling, and "
          "rope_scaling = \"none\" in the kinds that are not scaled",
          kind.name, toml_string(word_of(*kind.rope_scaling)), toml_string(word_of(m.rope_scaling)));
  }
  return "";
}

/// A key of [model] that each layer's kind has in another way.
void check_read(Draft& draft, std::string_view key, bool is_read) {
  if (draft.differs(key) && !is_read)
    draft.idle(key, "model.kinds", "has no effect, because every kind of layer sets it; leave this key out");
}

template <class F>
bool any_layer(const std::vector<LayerKeys>& layers, const F& f) {
  return std::ranges::any_of(layers, f);
}

/// Learned positions say alone where a token stands.
void check_learned_positions(Draft& draft, const std::vector<LayerKeys>& layers) {
  const Deck& d = draft.deck;
  if (!draft.good({"model.learned_positions"}) || d.model.learned_positions == 0) return;
  if (any_layer(layers, [](const LayerKeys& k) { return k.positions == PositionMode::rope; }))
    draft.fault({"model.learned_positions", "model.positions", "model.kinds"},
                "model.learned_positions needs layers without rotation, and some layers have positions = \"rope\"; set model.positions = "
                "\"none\" or model.learned_positions = 0");
  if (draft.good({"batch.sequence_length"}) && d.batch.sequence_length > d.model.learned_positions)
    draft.fault(
        {"batch.sequence_length", "model.learned_positions"},
        fmt::format(
            "batch.sequence_length {0} is more than the model's {1} position vectors (model.learned_positions); set it to at most {1}",
            d.batch.sequence_length, d.model.learned_positions));
  if (draft.differs("model.max_context"))
    draft.idle("model.max_context", "model.learned_positions",
               "has no effect with model.learned_positions, which exports declare; leave this key out");
}

void check_windows(Draft& draft, const std::vector<LayerKeys>& layers) {
  const Deck& d = draft.deck;
  if (!any_layer(layers, [](const LayerKeys& k) { return k.window > 0; })) return;
  if (draft.good({"kernels.attention", "run.device"}) && d.kernels.attention == AttentionMode::cudnn && d.run.device != RunDevice::host)
    draft.fault({"kernels.attention", "model.window", "model.kinds"},
                "only our own attention computes windows, and kernels.attention is \"cudnn\"; set it to \"auto\" or \"native\"");
}

void check_dense_layers(Draft& draft, const std::vector<LayerKeys>& layers) {
  if (!draft.good({"model.experts", "model.dense_layers"})) return;
  const ModelKeys& m = draft.deck.model;
  const auto says = std::ranges::find_if(m.kinds, [](const KindKeys& kind) { return kind.experts.has_value(); });
  if (m.experts == 0 && says != m.kinds.end())
    draft.fault({"model.kinds", "model.experts"},
                fmt::format("kind {} has experts = {}, but model.experts = 0 and no layer has experts; leave it out, or set model.experts",
                            says->name, *says->experts));
  if (m.experts > 0 && m.dense_layers < m.layers && !any_layer(layers, &LayerKeys::experts))
    draft.fault(
        {"model.kinds", "model.experts"},
        fmt::format("no layer's kind has the {} experts of model.experts; remove experts = false from a kind, or set model.experts = 0",
                    m.experts));
}

}  // namespace

void check_kinds(Draft& draft) {
  if (!draft.good(
          {"model.layers", "model.pattern", "model.kinds", "model.window", "model.positions", "model.rope_theta", "model.rope_scaling"}))
    return;
  const ModelKeys& m = draft.deck.model;
  if (!m.pattern.empty() || !m.kinds.empty())
    if (const std::string fault = fault_of_kinds(m); !fault.empty()) return draft.fault({"model.pattern", "model.kinds"}, fault);
  const std::vector<LayerKeys> layers = keys_of_layers(m);
  const auto leaves = [&](const auto& field) {
    return m.kinds.empty() || std::ranges::any_of(m.kinds, [&](const KindKeys& kind) { return !(kind.*field).has_value(); });
  };
  const bool rotates = any_layer(layers, [](const LayerKeys& k) { return k.positions == PositionMode::rope; });
  check_read(draft, "model.window", leaves(&KindKeys::window));
  check_read(draft, "model.positions", leaves(&KindKeys::positions));
  check_read(draft, "model.rope_theta", leaves(&KindKeys::rope_theta));
  for (const Key& key : deck_keys())
    if ((key.read_by == ReadBy::rotation || key.read_by == ReadBy::angles) && draft.differs(key.name) && !rotates)
      draft.idle(key.name, "model.positions", "has no effect, since no layer has positions = \"rope\"; leave this key out");
  const bool scales =
      any_layer(layers, [](const LayerKeys& k) { return k.positions == PositionMode::rope && k.rope_scaling != RopeMode::none; });
  if (m.rope_scaling != RopeMode::none && rotates && !scales)
    draft.fault({"model.rope_scaling", "model.kinds"},
                "model.rope_scaling is set, but each kind has rope_scaling = \"none\"; leave it out here, or in a kind");
  check_windows(draft, layers);
  check_dense_layers(draft, layers);
  check_learned_positions(draft, layers);
}

}  // namespace tessera
