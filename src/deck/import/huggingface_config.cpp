// config.json of Hugging Face, of the classes whose models a deck can say: Llama, Mistral, Qwen2, Qwen3, and those of them with experts.
// Every key has a meaning here, or is known to have none, or is refused by name.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>

#include "deck/import/huggingface_keys.hpp"
#include "deck/import/model_source.hpp"

namespace tessera {
namespace {

using namespace huggingface;

class ConfigReader {
 public:
  ConfigReader(const JsonNode& root, const std::string& file, std::vector<Fault>& faults) : root_(root), file_(file), faults_(faults) {}

  ModelSource read() {
    const std::string type = text("model_type", "");
    const auto family = std::ranges::find(families, std::string_view(type), &Family::type);
    if (family == families.end()) {
      std::vector<std::string_view> types;
      for (const Family& known : families) types.push_back(known.type);
      fault("model_type",
            fmt::format("{} is not a model that a deck can say; {} are", toml_string(shortened(type)), fmt::join(types, ", ")));
      return {};
    }
    ModelKeys m;
    m.layers = whole("num_hidden_layers");
    m.width = whole("hidden_size");
    m.heads = whole("num_attention_heads");
    m.ff_width = whole("intermediate_size");
    m.vocab = whole("vocab_size");
    m.kv_heads = whole("num_key_value_heads", family->kv_heads == 0 || is_null("num_key_value_heads") ? m.heads : family->kv_heads);
    const bool own = family->head_dim > 0 && !is_null("head_dim");
    m.head_dim = whole("head_dim", own ? family->head_dim : m.heads > 0 ? m.width / m.heads : 0);
    m.norm_eps = real("rms_norm_eps", family->norm_eps);
    m.init_std = real("initializer_range", 0.02);
    m.tied = truth("tie_word_embeddings", false);
    m.qk_norm = type == "qwen3" || type == "qwen3_moe";
    const bool output_bias = m.qk_norm && truth("attention_bias", false);
    m.qkv_bias = type == "qwen2" || output_bias || (type == "qwen2_moe" && truth("qkv_bias", true));
    read_experts(m, type);
    read_rotation(m, *family);
    const std::int64_t context = whole("max_position_embeddings", 0);
    check_token_ids();
    refuse_others(type);
    refuse_windows(type);
    check_architecture(*family);
    refuse_unknown(type);
    ModelSource source{m, context, fmt::format("{}, {}", type, toml_string(file_)), std::string(family->architecture), output_bias};
    if (!unused_.empty()) source.notes.push_back(fmt::format("{}: not used: {}", file_, fmt::join(unused_, ", ")));
    return source;
  }

 private:
  const JsonNode* find(std::string_view key) {
    known_.emplace(key);
    return root_.member(key);
  }
  static bool is_null(const JsonNode& object, std::string_view key) {
    return std::ranges::any_of(object.children, [&](const JsonNode& c) { return c.name == key && c.kind == JsonNode::Kind::null; });
  }
  bool is_null(std::string_view key) const { return is_null(root_, key); }

  void fault(std::string_view key, const std::string& message) {
    const JsonNode* node = root_.member(key);
    faults_.push_back({file_, node ? node->place.line : 0, node ? node->place.column : 0, std::string(key), message});
  }
  void fault(const JsonNode& node, const std::string& message) {
    faults_.push_back({file_, node.place.line, node.place.column, shortened(node.name), message});
  }
  void wrong(const JsonNode& node, const char* expected) {
    fault(node, fmt::format("expected {}, got {}", expected, shortened(node.literal.str())));
  }

  std::int64_t whole(std::string_view key, std::optional<std::int64_t> standard = {}) {
    const JsonNode* node = find(key);
    if (!node && !standard) return fault(key, "is missing"), 0;
    if (!node) return *standard;
    if (const auto* value = std::get_if<std::int64_t>(&node->literal.value)) return *value;
    return wrong(*node, "an integer"), 0;
  }
  double number(const JsonNode& node) {
    if (node.kind == JsonNode::Kind::integer || node.kind == JsonNode::Kind::real) return node.number();
    return wrong(node, "a number"), 0;
  }
  double real(std::string_view key, double standard) {
    const JsonNode* node = find(key);
    return node ? number(*node) : standard;
  }
  bool truth(std::string_view key, bool standard) {
    const JsonNode* node = find(key);
    if (!node) return standard;
    if (const auto* value = std::get_if<bool>(&node->literal.value)) return *value;
    return wrong(*node, "true or false"), standard;
  }
  std::string text(std::string_view key, const std::string& standard) {
    const JsonNode* node = find(key);
    if (!node) return standard;
    if (node->kind == JsonNode::Kind::text) return node->written;
    return wrong(*node, "a text"), standard;
  }

  /// The coefficient of transformers' balancing loss is left: that loss is of all layers together.
  void read_experts(ModelKeys& m, const std::string& type) {
    if (type == "mixtral") {
      m.experts = whole("num_local_experts", 8), m.experts_per_token = whole("num_experts_per_tok", 2), m.expert_ff_width = m.ff_width;
      return;
    }
    if (type != "qwen2_moe" && type != "qwen3_moe") return;
    // transformers 5 writes the experts of a Qwen3-MoE under Mixtral's name.
    const JsonNode* local = find("num_local_experts");
    m.experts = local && !find("num_experts") ? whole("num_local_experts") : whole("num_experts");
    if (local && whole("num_local_experts") != m.experts) fault("num_local_experts", "is not num_experts; leave one of the two out");
    m.experts_per_token = whole("num_experts_per_tok");
    m.expert_ff_width = whole("moe_intermediate_size");
    m.normalize_top_k = truth("norm_topk_prob", false);
    if (type == "qwen2_moe") m.shared_ff_width = whole("shared_expert_intermediate_size");
    if (whole("decoder_sparse_step", 1) != 1) fault("decoder_sparse_step", "layers without experts among others are not in this version");
    if (const JsonNode* dense = find("mlp_only_layers"); dense && !dense->children.empty())
      fault("mlp_only_layers", "layers without experts among others are not in this version");
  }

  /// transformers 4 writes rope_theta and rope_scaling, version 5 rope_parameters with both. Version 5 takes rope_scaling alone where both
  /// stand, as when somebody adds it to a file of version 5: then the other must not say something else.
  void read_rotation(ModelKeys& m, const Family& family) {
    m.rope_theta = real("rope_theta", family.rope_theta);
    m.rope_scaling = RopeMode::none;
    ModelKeys other = m;
    const JsonNode *older = rotation_of("rope_scaling"), *newer = rotation_of("rope_parameters");
    if (const JsonNode* used = older ? older : newer) read_rotation_of(m, *used);
    if (!older || !newer) return;
    read_rotation_of(other, *newer);
    const JsonNode* theta = newer->member("rope_theta");
    if (theta && other.rope_theta != m.rope_theta)
      fault(*theta, fmt::format("is {} in rope_parameters, and transformers takes rope_scaling alone where both stand, with {}; write "
                                "rope_theta into rope_scaling too, or leave one of the two out",
                                shortest(other.rope_theta), shortest(m.rope_theta)));
    other.rope_theta = m.rope_theta;
    if (other.rope_scaling != RopeMode::none && !(other == m))
      fault("rope_parameters", "says another rotation than rope_scaling; leave one of the two out");
  }

  /// An empty one is none.
  const JsonNode* rotation_of(std::string_view key) {
    const JsonNode* node = find(key);
    if (node && node->kind != JsonNode::Kind::object) return wrong(*node, "an object { ... }"), nullptr;
    return node && !node->children.empty() ? node : nullptr;
  }

  void read_rotation_of(ModelKeys& m, const JsonNode& rotation) {
    const JsonNode *kind = rotation.member("rope_type"), *old_name = rotation.member("type");
    if (kind && old_name && kind->written != old_name->written)
      fault(*old_name, fmt::format("is {}, and rope_type is {}; leave one of the two out", shortened(old_name->literal.str()),
                                   shortened(kind->literal.str())));
    if (!kind) kind = old_name;
    if (const JsonNode* theta = rotation.member("rope_theta")) {
      if (const JsonNode* above = find("rope_theta"); above && number(*above) != number(*theta))
        fault(*theta, fmt::format("is {} in {}, and {} outside of it; leave one of the two out", shortest(number(*theta)), rotation.name,
                                  shortest(number(*above))));
      m.rope_theta = number(*theta);
    }
    check_rotation_keys(rotation, kind);
    if (!kind || kind->is("default")) return;
    for (const RopeMode scaling : {RopeMode::llama3, RopeMode::linear, RopeMode::dynamic, RopeMode::yarn})
      if (kind->is(word_of(scaling))) return m.rope_scaling = scaling, read_scaling(m, rotation);
    fault(*kind, fmt::format("{} is not in this version; \"default\", \"llama3\", \"linear\", \"dynamic\" and \"yarn\" are",
                             shortened(kind->literal.str())));
  }

  /// What a rotation of the model's type has, or the default of what it lacks.
  void read_scaling(ModelKeys& m, const JsonNode& rotation) {
    const auto given = [&](std::string_view key) { return rotation.member(key); };
    const auto part = [&](std::string_view key) {
      const JsonNode* node = given(key);
      if (!node) fault(rotation, fmt::format("has no {}, which a rotation of type {} needs", key, word_of(m.rope_scaling)));
      return node ? number(*node) : 0;
    };
    m.rope_factor = part("factor");
    if (m.rope_scaling == RopeMode::llama3)
      m.rope_low_freq_factor = part("low_freq_factor"), m.rope_high_freq_factor = part("high_freq_factor");
    if (m.rope_scaling == RopeMode::llama3) m.rope_original_context = static_cast<std::int64_t>(part("original_max_position_embeddings"));
    if (m.rope_scaling == RopeMode::dynamic) m.rope_original_context = whole("max_position_embeddings");
    if (m.rope_scaling != RopeMode::yarn) return;
    const JsonNode* original = given("original_max_position_embeddings");
    m.rope_original_context = original ? static_cast<std::int64_t>(number(*original)) : whole("max_position_embeddings");
    if (const JsonNode* fast = given("beta_fast")) m.rope_beta_fast = number(*fast);
    if (const JsonNode* slow = given("beta_slow")) m.rope_beta_slow = number(*slow);
    // DeepSeek's two scales of the logarithm make an attention factor.
    const auto scale = [&](const JsonNode& by) { return m.rope_factor > 1 ? 0.1 * number(by) * std::log(m.rope_factor) + 1 : 1; };
    const JsonNode *one = given("mscale"), *all = given("mscale_all_dim");
    if (const JsonNode* attention = given("attention_factor"))
      m.rope_attention_factor = number(*attention);
    else if (one && all && number(*one) != 0 && number(*all) != 0)
      m.rope_attention_factor = scale(*one) / scale(*all);
    if (const JsonNode* cut = given("truncate"); cut && !std::get_if<bool>(&cut->literal.value))
      wrong(*cut, "true");
    else if ((cut && !std::get<bool>(cut->literal.value)) || is_null(rotation, "truncate"))  // to transformers null is false here
      fault(rotation, "a range of YaRN that is not cut to whole pairs (truncate) is not in this version");
  }

  /// What says nothing of a rotation of such a type is named; what says something and is not known is refused.
  void check_rotation_keys(const JsonNode& rotation, const JsonNode* kind) {
    const std::string_view type = kind ? std::string_view(kind->written) : "default";
    for (const JsonNode& part : rotation.children) {
      const bool whole_head = part.name == "partial_rotary_factor" && number(part) == 1;
      if (part.kind == JsonNode::Kind::null || whole_head) continue;
      const auto row = std::ranges::find(rotation_keys, std::string_view(part.name), &RotationKey::key);
      if (row == rotation_keys.end())
        fault(part, "is a part of a rotation that is not in this version");
      else if (!row->types.empty() && !kind)
        fault(part, fmt::format("stands in {} without a rope_type, which says what it is for", rotation.name));
      else if (!row->types.empty() && row->types.find(type) == std::string_view::npos)
        unused_.push_back(fmt::format("{}.{}", rotation.name, part.name));
    }
  }

  /// Exports carry them.
  void check_token_ids() {
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
      const JsonNode* node = find(key);
      const auto is_id = [](const JsonNode& one) { return one.kind == JsonNode::Kind::integer; };
      if (node && !is_id(*node) && !(node->kind == JsonNode::Kind::list && std::ranges::all_of(node->children, is_id)))
        wrong(*node, "the number of a token, or a list of such");
    }
  }

  void refuse_others(const std::string& type) {
    if (const std::string act = text("hidden_act", "silu"); act != "silu")
      fault("hidden_act",
            fmt::format("{} is not in this version; the feed-forward block is SwiGLU (\"silu\")", toml_string(shortened(act))));
    const bool with_zeros = type == "qwen3" || type == "qwen3_moe";  // biases of q, k, v, and one of the output that must be zeros
    if (!with_zeros && truth("attention_bias", false)) fault("attention_bias", "a bias on the attention's output is not in this version");
    if (truth("mlp_bias", false)) fault("mlp_bias", "biases in the feed-forward block are not in this version");
    for (const Refused& row : refused_keys)
      if (find(row.key)) fault(row.key, std::string(row.why));
    for (const Idle& row : idle) {
      const JsonNode* node = find(row.key);
      if (!node) continue;
      const auto* flag = std::get_if<bool>(&node->literal.value);
      if ((flag ? static_cast<double>(*flag) : number(*node)) != row.value) fault(*node, std::string(row.why));
    }
  }

  void refuse_windows(const std::string& type) {
    constexpr const char* why = "attention over a window is not in this version; where no sequence is longer than it, set it to null";
    if (type == "llama") return refuse_layers_with_windows();
    const JsonNode* window = find("sliding_window");
    if (type == "mistral" || type == "mixtral") {
      if (window) fault("sliding_window", why);
      if (type == "mistral" && !window && !is_null("sliding_window"))
        fault("sliding_window", fmt::format("is missing, which is a window of 4096; {}", why));
      return refuse_layers_with_windows();
    }
    find("max_window_layers");
    if (truth("use_sliding_window", false)) fault("sliding_window", why);
    refuse_layers_with_windows();
  }

  void refuse_layers_with_windows() {
    const JsonNode* layers = find("layer_types");
    if (!layers) return;
    for (const JsonNode& kind : layers->children)
      if (!kind.is("full_attention"))
        return fault("layer_types",
                     fmt::format("a layer of {} is not in this version; \"full_attention\" is", shortened(kind.literal.str())));
  }

  void check_architecture(const Family& family) {
    const JsonNode* classes = find("architectures");
    if (!classes) return;
    if (classes->kind == JsonNode::Kind::list && classes->children.size() == 1 && classes->children[0].is(family.architecture)) return;
    std::vector<std::string_view> supported;
    for (const Family& known : families) supported.push_back(known.architecture);
    const std::string given = classes->children.empty() ? classes->literal.str() : classes->children[0].literal.str();
    fault("architectures", fmt::format("{} is not what is read here of model_type \"{}\"; supported: {}", shortened(given), family.type,
                                       fmt::join(supported, ", ")));
  }

  void refuse_unknown(const std::string& type) {
    for (const JsonNode& node : root_.children) {
      if (node.kind == JsonNode::Kind::null || known_.contains(node.name) || holds(harmless, node.name)) continue;
      if (holds(unused, node.name)) {
        unused_.push_back(node.name == "router_aux_loss_coef" ? node.name + " (model.router_aux_loss is a layer's)" : node.name);
        continue;
      }
      faults_.push_back(
          {file_, node.name_place.line, node.name_place.column, shortened(node.name),
           fmt::format("is not a key that is known of model_type \"{}\", so the model may be another than a deck can say; where no "
                       "number depends on it, take it out of the file",
                       type)});
    }
  }

  const JsonNode& root_;
  const std::string& file_;
  std::vector<Fault>& faults_;
  std::set<std::string, std::less<>> known_;  ///< what was asked for
  std::vector<std::string> unused_;           ///< what is known, and says nothing of the model
};

}  // namespace

ModelSource read_huggingface_config(const std::string& text, const std::string& file, std::vector<Fault>& faults) {
  JsonNode root;
  if (!read_json(text, file, root, faults)) return {};
  return ConfigReader(root, file, faults).read();
}

}  // namespace tessera
