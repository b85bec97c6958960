// config.json of Hugging Face, of the classes whose models a deck can say: Llama, Mistral, Qwen2, Qwen3, and those of them with experts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "deck/import/model_source.hpp"

namespace tessera {
namespace {

constexpr std::array<std::string_view, 7> known_types = {"llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe"};

class ConfigReader {
 public:
  ConfigReader(const JsonNode& root, const std::string& file, std::vector<Fault>& faults) : root_(root), file_(file), faults_(faults) {}

  ModelSource read() {
    const std::string type = text("model_type", "");
    if (std::find(known_types.begin(), known_types.end(), type) == known_types.end()) {
      fault("model_type",
            fmt::format("{} is not a model that a deck can say; {} are", toml_string(shortened(type)), fmt::join(known_types, ", ")));
      return {};
    }
    ModelKeys m;
    m.layers = whole("num_hidden_layers");
    m.width = whole("hidden_size");
    m.heads = whole("num_attention_heads");
    m.ff_width = whole("intermediate_size");
    m.vocab = whole("vocab_size");
    m.kv_heads = whole("num_key_value_heads", m.heads);
    m.head_dim = whole("head_dim", m.heads > 0 ? m.width / m.heads : 0);
    m.norm_eps = real("rms_norm_eps", 1e-6);
    m.init_std = real("initializer_range", 0.02);
    m.tied = truth("tie_word_embeddings", false);
    m.qk_norm = type == "qwen3" || type == "qwen3_moe";
    m.qkv_bias = type == "qwen2" || (type == "qwen2_moe" && truth("qkv_bias", true));
    read_experts(m, type);
    read_rotation(m);
    refuse_others(type);
    return {m, whole("max_position_embeddings", 0), fmt::format("{}, {}", type, toml_string(file_))};
  }

 private:
  const JsonNode* find(std::string_view key) const { return root_.member(key); }

  void fault(std::string_view key, const std::string& message) {
    const JsonNode* node = find(key);
    faults_.push_back({file_, node ? node->place.line : 0, node ? node->place.column : 0, std::string(key), message});
  }
  void wrong(const JsonNode& node, const char* expected) {
    faults_.push_back({file_, node.place.line, node.place.column, node.name,
                       fmt::format("expected {}, got {}", expected, shortened(node.literal.str()))});
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
  double real(std::string_view key, double standard) { return find(key) ? number(*find(key)) : standard; }
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
    m.experts = whole("num_experts"), m.experts_per_token = whole("num_experts_per_tok");
    m.expert_ff_width = whole("moe_intermediate_size");
    m.normalize_top_k = truth("norm_topk_prob", false);
    if (type == "qwen2_moe") m.shared_ff_width = whole("shared_expert_intermediate_size");
    if (whole("decoder_sparse_step", 1) != 1) fault("decoder_sparse_step", "layers without experts among others are not in this version");
    if (const JsonNode* dense = find("mlp_only_layers"); dense && !dense->children.empty())
      fault("mlp_only_layers", "layers without experts among others are not in this version");
  }

  /// transformers 4 writes rope_theta and rope_scaling, version 5 rope_parameters with both.
  void read_rotation(ModelKeys& m) {
    m.rope_theta = real("rope_theta", 10000);
    m.rope_scaling = "none";
    const JsonNode* rotation = find("rope_parameters");
    if (!rotation) rotation = find("rope_scaling");
    if (!rotation) return;
    if (rotation->kind != JsonNode::Kind::object) return wrong(*rotation, "an object { ... }");
    const JsonNode* kind = rotation->member("rope_type");
    if (!kind) kind = rotation->member("type");
    if (const JsonNode* theta = rotation->member("rope_theta")) m.rope_theta = number(*theta);
    if (!kind || kind->is("default")) return;
    if (!kind->is("llama3"))
      return faults_.push_back({file_, kind->place.line, kind->place.column, std::string(kind->name),
                                fmt::format("{} is not in this version; \"llama3\" and \"default\" are", shortened(kind->literal.str()))});
    m.rope_scaling = "llama3";
    const auto part = [&](std::string_view key, double standard) {
      const JsonNode* node = rotation->member(key);
      return node ? number(*node) : standard;
    };
    m.rope_factor = part("factor", 8), m.rope_low_freq_factor = part("low_freq_factor", 1);
    m.rope_high_freq_factor = part("high_freq_factor", 4);
    m.rope_original_context = static_cast<std::int64_t>(part("original_max_position_embeddings", 8192));
  }

  void refuse_others(const std::string& type) {
    if (const std::string act = text("hidden_act", "silu"); act != "silu")
      fault("hidden_act",
            fmt::format("{} is not in this version; the feed-forward block is SwiGLU (\"silu\")", toml_string(shortened(act))));
    if (truth("attention_bias", false)) fault("attention_bias", "a bias on the attention's output is not in this version");
    if (truth("mlp_bias", false)) fault("mlp_bias", "biases in the feed-forward block are not in this version");
    if (((type == "mistral" || type == "mixtral") && find("sliding_window")) || truth("use_sliding_window", false))
      fault("sliding_window", "attention over a window is not in this version; where no sequence is longer than it, set it to null");
  }

  const JsonNode& root_;
  const std::string& file_;
  std::vector<Fault>& faults_;
};

}  // namespace

ModelSource read_huggingface_config(const std::string& text, const std::string& file, std::vector<Fault>& faults) {
  JsonNode root;
  if (!read_json(text, file, root, faults)) return {};
  return ConfigReader(root, file, faults).read();
}

}  // namespace tessera
