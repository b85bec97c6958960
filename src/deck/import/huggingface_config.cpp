// config.json of Hugging Face, of the classes whose models a deck can say: Llama, Mistral, Qwen2, Qwen3, and those of them with experts.
// Every key has a meaning here, or is known to have none, or is refused by name.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>

#include "deck/import/model_source.hpp"

namespace tessera {
namespace {

/// A class of transformers, and what a key stands for that its configuration does not have.
struct Family {
  std::string_view type, architecture;
  std::int64_t kv_heads = 0;  ///< 0: as many as heads
  double norm_eps = 1e-6, rope_theta = 1e4;
  std::int64_t head_dim = 0;  ///< 0: hidden_size / num_attention_heads
};

constexpr std::array<Family, 7> families = {
    {{.type = "llama", .architecture = "LlamaForCausalLM"},
     {.type = "mistral", .architecture = "MistralForCausalLM", .kv_heads = 8},
     {.type = "qwen2", .architecture = "Qwen2ForCausalLM", .kv_heads = 32},
     {.type = "qwen3", .architecture = "Qwen3ForCausalLM", .kv_heads = 32, .head_dim = 128},
     {.type = "mixtral", .architecture = "MixtralForCausalLM", .kv_heads = 8, .norm_eps = 1e-5, .rope_theta = 1e6},
     {.type = "qwen2_moe", .architecture = "Qwen2MoeForCausalLM", .kv_heads = 16},
     {.type = "qwen3_moe", .architecture = "Qwen3MoeForCausalLM", .kv_heads = 4}}};

/// Of tokens, of files and of programs, or of generation: no number of the model depends on them.
const std::set<std::string_view> without_meaning = {"transformers_version",
                                                    "torch_dtype",
                                                    "dtype",
                                                    "_name_or_path",
                                                    "name_or_path",
                                                    "use_cache",
                                                    "transformers.js_config",
                                                    "bos_token_id",
                                                    "eos_token_id",
                                                    "pad_token_id",
                                                    "sep_token_id",
                                                    "decoder_start_token_id",
                                                    "tokenizer_class",
                                                    "prefix",
                                                    "output_attentions",
                                                    "output_hidden_states",
                                                    "output_router_logits",
                                                    "output_scores",
                                                    "return_dict",
                                                    "return_dict_in_generate",
                                                    "attn_implementation",
                                                    "_attn_implementation",
                                                    "_attn_implementation_autoset",
                                                    "_flash_attn_2_enabled",
                                                    "torchscript",
                                                    "pretraining_tp",
                                                    "id2label",
                                                    "label2id",
                                                    "num_labels",
                                                    "problem_type",
                                                    "finetuning_task",
                                                    "task_specific_params",
                                                    "chunk_size_feed_forward",
                                                    "cross_attention_hidden_size",
                                                    "tie_encoder_decoder",
                                                    "is_decoder",
                                                    "gradient_checkpointing",
                                                    "use_bfloat16",
                                                    "tf_legacy_loss",
                                                    "pruned_heads",
                                                    "max_length",
                                                    "min_length",
                                                    "do_sample",
                                                    "early_stopping",
                                                    "num_beams",
                                                    "num_beam_groups",
                                                    "diversity_penalty",
                                                    "temperature",
                                                    "top_k",
                                                    "top_p",
                                                    "typical_p",
                                                    "repetition_penalty",
                                                    "length_penalty",
                                                    "no_repeat_ngram_size",
                                                    "encoder_no_repeat_ngram_size",
                                                    "bad_words_ids",
                                                    "num_return_sequences",
                                                    "exponential_decay_length_penalty",
                                                    "suppress_tokens",
                                                    "begin_suppress_tokens",
                                                    "forced_bos_token_id",
                                                    "forced_eos_token_id",
                                                    "remove_invalid_values",
                                                    "router_aux_loss_coef",
                                                    "is_llama_config",
                                                    "max_sequence_length",
                                                    "unsloth_version",
                                                    "unsloth_fixed"};

/// What is refused where it is there, and not null.
struct Refused {
  std::string_view key, why;
};
constexpr std::array<Refused, 3> refused = {
    {{"quantization_config", "quantized weights are not in this version; get the model in BF16, F16 or F32"},
     {"compression_config", "compressed weights are not in this version; get the model in BF16, F16 or F32"},
     {"auto_map", "the model brings code of its own (trust_remote_code), and what that computes is not known here"}}};

/// What must have a value that asks for nothing.
struct Idle {
  std::string_view key;
  double value;  ///< of a boolean 0 or 1
  std::string_view why;
};
constexpr std::array<Idle, 9> idle = {{{"attention_dropout", 0, "dropout is not in this version; set it to 0.0"},
                                       {"hidden_dropout", 0, "dropout is not in this version; set it to 0.0"},
                                       {"resid_pdrop", 0, "dropout is not in this version; set it to 0.0"},
                                       {"router_jitter_noise", 0, "noise on routers is not in this version; set it to 0.0"},
                                       {"partial_rotary_factor", 1, "the rotation of a part of a head's features is not in this version"},
                                       {"rope_interleaved", 0, "rotations of neighbouring features are not in this version"},
                                       {"use_mrope", 0, "rotations of several positions are not in this version"},
                                       {"is_encoder_decoder", 0, "encoders are not in this version"},
                                       {"add_cross_attention", 0, "attention to another text is not in this version"}}};

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
    refuse_others(type);
    refuse_windows(type);
    check_architecture(*family);
    refuse_unknown(type);
    return {m, context, fmt::format("{}, {}", type, toml_string(file_)), std::string(family->architecture), output_bias};
  }

 private:
  const JsonNode* find(std::string_view key) {
    known_.emplace(key);
    return root_.member(key);
  }
  bool is_null(std::string_view key) const {
    return std::ranges::any_of(root_.children, [&](const JsonNode& c) { return c.name == key && c.kind == JsonNode::Kind::null; });
  }

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

  /// transformers 4 writes rope_theta and rope_scaling, version 5 rope_parameters with both.
  void read_rotation(ModelKeys& m, const Family& family) {
    m.rope_theta = real("rope_theta", family.rope_theta);
    m.rope_scaling = "none";
    const JsonNode* scaling = find("rope_scaling");
    const JsonNode* rotation = find("rope_parameters");
    if (!rotation) rotation = scaling;
    if (!rotation) return;
    if (rotation->kind != JsonNode::Kind::object) return wrong(*rotation, "an object { ... }");
    const JsonNode* kind = rotation->member("rope_type");
    if (!kind) kind = rotation->member("type");
    if (const JsonNode* theta = rotation->member("rope_theta")) m.rope_theta = number(*theta);
    for (const JsonNode& part : rotation->children) check_rotation_part(part);
    if (!kind || kind->is("default")) return;
    for (const std::string_view scaling : {"llama3", "linear", "dynamic", "yarn"})
      if (kind->is(scaling)) return m.rope_scaling = scaling, read_scaling(m, *rotation);
    fault(*kind, fmt::format("{} is not in this version; \"default\", \"llama3\", \"linear\", \"dynamic\" and \"yarn\" are",
                             shortened(kind->literal.str())));
  }

  /// What a rotation of the model's type has, or the default of what it lacks.
  void read_scaling(ModelKeys& m, const JsonNode& rotation) {
    const auto given = [&](std::string_view key) { return rotation.member(key); };
    const auto part = [&](std::string_view key) {
      const JsonNode* node = given(key);
      if (!node) fault(rotation, fmt::format("has no {}, which a rotation of type {} needs", key, m.rope_scaling));
      return node ? number(*node) : 0;
    };
    m.rope_factor = part("factor");
    if (m.rope_scaling == "llama3") m.rope_low_freq_factor = part("low_freq_factor"), m.rope_high_freq_factor = part("high_freq_factor");
    if (m.rope_scaling == "llama3") m.rope_original_context = static_cast<std::int64_t>(part("original_max_position_embeddings"));
    if (m.rope_scaling == "dynamic") m.rope_original_context = whole("max_position_embeddings");
    if (m.rope_scaling != "yarn") return;
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
    else if (cut && !std::get<bool>(cut->literal.value))
      fault(*cut, "a range of YaRN that is not cut to whole pairs is not in this version");
  }

  void check_rotation_part(const JsonNode& part) {
    static const std::set<std::string_view> known = {
        "rope_type", "type",      "rope_theta",       "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
        "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim",  "truncate"};
    const bool whole_head = part.name == "partial_rotary_factor" && number(part) == 1;
    if (known.contains(part.name) || whole_head || part.kind == JsonNode::Kind::null) return;
    fault(part, "is a part of a rotation that is not in this version");
  }

  void refuse_others(const std::string& type) {
    if (const std::string act = text("hidden_act", "silu"); act != "silu")
      fault("hidden_act",
            fmt::format("{} is not in this version; the feed-forward block is SwiGLU (\"silu\")", toml_string(shortened(act))));
    const bool with_zeros = type == "qwen3" || type == "qwen3_moe";  // biases of q, k, v, and one of the output that must be zeros
    if (!with_zeros && truth("attention_bias", false)) fault("attention_bias", "a bias on the attention's output is not in this version");
    if (truth("mlp_bias", false)) fault("mlp_bias", "biases in the feed-forward block are not in this version");
    for (const Refused& row : refused)
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
      if (node.kind == JsonNode::Kind::null || known_.contains(node.name) || without_meaning.contains(node.name)) continue;
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
};

}  // namespace

ModelSource read_huggingface_config(const std::string& text, const std::string& file, std::vector<Fault>& faults) {
  JsonNode root;
  if (!read_json(text, file, root, faults)) return {};
  return ConfigReader(root, file, faults).read();
}

}  // namespace tessera
