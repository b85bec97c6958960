// The rotation of positions, as transformers 4 and 5 write it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "deck/kinds_of_layers.hpp"
#include "families/config_reader.hpp"
#include "families/family.hpp"
#include "families/known_keys.hpp"

namespace tessera {
namespace {

class RotationReader {
 public:
  RotationReader(ConfigReader& config, const RotationRule& rule) : config_(config), rule_(rule) {}

  /// transformers 4 writes rope_theta and rope_scaling, version 5 rope_parameters with both. Version 5 takes rope_scaling alone where both
  /// stand, as when somebody adds it to a file of version 5: then the other must not say something else.
  void read(ModelKeys& m) {
    m.rope_theta = config_.real("rope_theta", m.rope_theta);
    read_both(m, given_as("rope_scaling"), given_as("rope_parameters"));
  }

  /// Of layers that see all keys, which have transformers 4's rope_theta and rope_scaling, into the model; returns that of those with a
  /// window. rope_parameters has both by the words of layer_types.
  WindowRotation read_by_window(const RotationRule& rule, ModelKeys& m) {
    const JsonNode* newer = given_as("rope_parameters");
    const JsonNode *full = newer ? newer->member("full_attention") : nullptr,
                   *sliding = newer ? newer->member("sliding_attention") : nullptr;
    for (const JsonNode* node : {full, sliding})
      if (node && node->kind != JsonNode::Kind::object) return config_.wrong(*node, "an object { ... }"), WindowRotation{};
    if (newer && !full && !sliding)
      return config_.fault(*newer, "has neither full_attention nor sliding_attention, to which its rotations belong"), WindowRotation{};
    if (newer)
      for (const JsonNode& part : newer->children)
        if (&part != full && &part != sliding) config_.fault(part, "is neither full_attention nor sliding_attention");
    const bool older = config_.find("rope_theta") != nullptr;
    const double standard = m.rope_theta;
    m.rope_theta = config_.real("rope_theta", standard);
    ModelKeys local = m;
    local.rope_theta = rule.theta > 0 ? rule.theta : standard;
    if (!rule.theta_key.empty())
      local.rope_theta = config_.real(rule.theta_key, local.rope_theta);
    else if (older && !sliding && m.rope_theta != standard)
      config_.fault("rope_theta",
                    "applies to all layers in transformers 4, but only to those without a window in version 5; write rope_parameters");
    read_both(m, given_as("rope_scaling"), full);
    if (sliding) local.rope_scaling = RopeMode::none, read_one(local, *sliding, false);
    if (local.rope_scaling != RopeMode::none) {
      ModelKeys same = local;
      same.rope_theta = m.rope_theta;
      if (!(same == m)) config_.fault(*sliding, "is scaled in another way than full_attention, which is not in this version");
    }
    return {local.rope_theta, local.rope_scaling};
  }

 private:
  void read_both(ModelKeys& m, const JsonNode* older, const JsonNode* newer) {
    if (!older && !newer) return;  // the class's own
    const ModelKeys plain;
    m.rope_scaling = plain.rope_scaling, m.rope_factor = plain.rope_factor, m.rope_original_context = plain.rope_original_context;
    m.rope_truncate = plain.rope_truncate, m.rope_short_factors.clear(), m.rope_long_factors.clear();
    ModelKeys other = m;
    read_one(m, older ? *older : *newer);
    if (!older || !newer) return;
    read_one(other, *newer);
    const JsonNode* theta = newer->member("rope_theta");
    if (theta && other.rope_theta != m.rope_theta)
      config_.fault(*theta, fmt::format("is {} in rope_parameters, but if both are present transformers reads only rope_scaling, with {}; "
                                        "write rope_theta into rope_scaling too, or leave one of the two out",
                                        shortest(other.rope_theta), shortest(m.rope_theta)));
    other.rope_theta = m.rope_theta;
    if (other.rope_scaling != RopeMode::none && !(other == m))
      config_.fault("rope_parameters", "sets another rotation than rope_scaling; leave one of the two out");
  }

  /// An empty one is none.
  const JsonNode* given_as(std::string_view key) {
    const JsonNode* node = config_.find(key);
    if (node && node->kind != JsonNode::Kind::object) return config_.wrong(*node, "an object { ... }"), nullptr;
    return node && !node->children.empty() ? node : nullptr;
  }

  /// `of_file`: the file's rope_theta is this one's.
  void read_one(ModelKeys& m, const JsonNode& rotation, bool of_file = true) {
    const JsonNode *kind = rotation.member("rope_type"), *old_name = rotation.member("type");
    if (kind && old_name && kind->written != old_name->written)
      config_.fault(*old_name, fmt::format("is {}, but rope_type is {}; leave one of the two out", shortened(old_name->literal.str()),
                                           shortened(kind->literal.str())));
    if (!kind) kind = old_name;
    if (const JsonNode* theta = rotation.member("rope_theta")) {
      if (const JsonNode* above = config_.find("rope_theta"); of_file && above && config_.number(*above) != config_.number(*theta))
        config_.fault(*theta, fmt::format("is {} in {}, but {} outside of it; leave one of the two out", shortest(config_.number(*theta)),
                                          rotation.name, shortest(config_.number(*above))));
      m.rope_theta = config_.number(*theta);
    }
    if (const JsonNode* part = rotation.member("partial_rotary_factor"); part && rule_.partial) m.rotary_fraction = config_.number(*part);
    const bool is_longrope = kind && (kind->is("longrope") || (rule_.longrope_alone && (kind->is("su") || kind->is("yarn"))));
    check_keys(rotation, is_longrope ? "longrope" : kind ? std::string_view(kind->written) : "");
    if (!kind || kind->is("default")) return;
    if (is_longrope) return m.rope_scaling = RopeMode::longrope, read_longrope(m, rotation);
    if (rule_.longrope_alone)
      return config_.fault(*kind, fmt::format("{} is not a rotation of this model_type's class; \"default\" and \"longrope\" are",
                                              shortened(kind->literal.str())));
    for (const RopeMode scaling : {RopeMode::llama3, RopeMode::linear, RopeMode::dynamic, RopeMode::yarn})
      if (kind->is(word_of(scaling))) return m.rope_scaling = scaling, read_scaling(m, rotation);
    config_.fault(*kind,
                  fmt::format("{} is not in this version; \"default\", \"llama3\", \"linear\", \"dynamic\", \"yarn\" and \"longrope\" are",
                              shortened(kind->literal.str())));
  }

  void read_longrope(ModelKeys& m, const JsonNode& rotation) {
    const auto factors = [&](std::string_view key, std::vector<double>& out) {
      const JsonNode* list = rotation.member(key);
      if (!list) return config_.fault(rotation, fmt::format("has no {}, which a rotation of type longrope needs", key));
      if (list->kind != JsonNode::Kind::list) return config_.wrong(*list, "a list of numbers");
      for (const JsonNode& factor : list->children)
        if (out.push_back(config_.number(factor)); !(out.back() > 0)) config_.fault(factor, "is not a number above 0");
      const auto pairs = static_cast<std::size_t>(rotated_features(m) / 2);
      if (m.head_dim > 0 && out.size() != pairs)
        config_.fault(*list, fmt::format("has {} numbers, but {} pairs of features of a head are rotated", out.size(), pairs));
    };
    factors("short_factor", m.rope_short_factors), factors("long_factor", m.rope_long_factors);
    const std::int64_t context = config_.whole("max_position_embeddings", 0);
    const JsonNode* original = rotation.member("original_max_position_embeddings");
    m.rope_original_context = rule_.longrope_alone ? config_.whole("original_max_position_embeddings", 4096)
                              : original           ? static_cast<std::int64_t>(config_.number(*original))
                                                   : config_.needed("max_position_embeddings");
    if (rule_.longrope_alone && original && config_.number(*original) != static_cast<double>(m.rope_original_context))
      config_.fault(*original,
                    "differs from original_max_position_embeddings of config.json, the only key that the class reads; leave it out");
    if (m.rope_original_context < 2) return config_.fault(rotation, "has no original_max_position_embeddings of 2 tokens or more");
    if (const JsonNode* factor = rotation.member("factor"))
      m.rope_factor = config_.number(*factor);
    else if (context > 0)
      m.rope_factor = static_cast<double>(context) / static_cast<double>(m.rope_original_context);
    else
      config_.needed("max_position_embeddings");
    if (const JsonNode* attention = rotation.member("attention_factor")) m.rope_attention_factor = config_.number(*attention);
  }

  /// What a rotation of the model's type has, or the default of what it lacks.
  void read_scaling(ModelKeys& m, const JsonNode& rotation) {
    const auto given = [&](std::string_view key) { return rotation.member(key); };
    const auto part = [&](std::string_view key) {
      const JsonNode* node = given(key);
      if (!node) config_.fault(rotation, fmt::format("has no {}, which a rotation of type {} needs", key, word_of(m.rope_scaling)));
      return node ? config_.number(*node) : 0;
    };
    m.rope_factor = part("factor");
    if (m.rope_scaling == RopeMode::llama3)
      m.rope_low_freq_factor = part("low_freq_factor"), m.rope_high_freq_factor = part("high_freq_factor");
    if (m.rope_scaling == RopeMode::llama3) m.rope_original_context = static_cast<std::int64_t>(part("original_max_position_embeddings"));
    if (m.rope_scaling == RopeMode::dynamic) m.rope_original_context = config_.needed("max_position_embeddings");
    if (m.rope_scaling != RopeMode::yarn) return;
    const JsonNode* original = given("original_max_position_embeddings");
    m.rope_original_context = original ? static_cast<std::int64_t>(config_.number(*original)) : config_.needed("max_position_embeddings");
    if (const JsonNode* fast = given("beta_fast")) m.rope_beta_fast = config_.number(*fast);
    if (const JsonNode* slow = given("beta_slow")) m.rope_beta_slow = config_.number(*slow);
    // DeepSeek's two scales of the logarithm make an attention factor.
    const auto scale = [&](const JsonNode& by) { return m.rope_factor > 1 ? 0.1 * config_.number(by) * std::log(m.rope_factor) + 1 : 1; };
    const JsonNode *one = given("mscale"), *all = given("mscale_all_dim");
    if (const JsonNode* attention = given("attention_factor"))
      m.rope_attention_factor = config_.number(*attention);
    else if (one && all && config_.number(*one) != 0 && config_.number(*all) != 0)
      m.rope_attention_factor = scale(*one) / scale(*all);
    if (const JsonNode* cut = given("truncate"); cut && !std::get_if<bool>(&cut->literal.value))
      config_.wrong(*cut, "true");
    else if ((cut && !std::get<bool>(cut->literal.value)) ||
             ConfigReader::is_null(rotation, "truncate"))  // to transformers null is false here
      m.rope_truncate = false;
  }

  /// What says nothing of a rotation of such a type is named; what says something and is not known is refused.
  void check_keys(const JsonNode& rotation, std::string_view type) {
    for (const JsonNode& part : rotation.children) {
      const bool whole_head = part.name == "partial_rotary_factor" && (rule_.partial || config_.number(part) == 1);
      if (part.kind == JsonNode::Kind::null || whole_head) continue;
      const auto row = std::ranges::find(huggingface::rotation_keys, std::string_view(part.name), &huggingface::RotationKey::key);
      if (row == huggingface::rotation_keys.end())
        config_.fault(part, "belongs to a rotation that is not in this version");
      else if (!row->types.empty() && type.empty())
        config_.fault(part, fmt::format("is in {} without a rope_type, which it needs", rotation.name));
      else if (!row->types.empty() && row->types.find(type) == std::string_view::npos)
        config_.unused(fmt::format("{}.{}", rotation.name, part.name));
    }
  }

  ConfigReader& config_;
  const RotationRule& rule_;
};

}  // namespace

WindowRotation read_rotation(ConfigReader& config, const RotationRule& rule, ModelKeys& model) {
  RotationReader reader(config, rule);
  if (rule.by_window) return reader.read_by_window(rule, model);
  reader.read(model);
  return {model.rope_theta, model.rope_scaling};
}

}  // namespace tessera
