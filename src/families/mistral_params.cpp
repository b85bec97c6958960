#include "families/mistral_params.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "families/config_reader.hpp"
#include "families/family.hpp"
#include "families/layers.hpp"

namespace tessera {
namespace {

// Both kinds of feed-forward blocks are called feed_forward. Queries and keys are rotated by neighbouring features.
constexpr auto params_names =
    std::to_array<TensorName>({{"embedding.weight", "tok_embeddings.weight"},
                               {"layers.#.attention.norm", "layers.#.attention_norm.weight"},
                               {.ours = "layers.#.attention.wq", .theirs = "layers.#.attention.wq.weight", .pairs = true},
                               {.ours = "layers.#.attention.wk", .theirs = "layers.#.attention.wk.weight", .pairs = true},
                               {"layers.#.attention.wv", "layers.#.attention.wv.weight"},
                               {"layers.#.attention.wo", "layers.#.attention.wo.weight"},
                               {"layers.#.mlp.norm", "layers.#.ffn_norm.weight"},
                               {"layers.#.mlp.w_gate", "layers.#.feed_forward.w1.weight"},
                               {"layers.#.mlp.w_up", "layers.#.feed_forward.w3.weight"},
                               {"layers.#.mlp.w_down", "layers.#.feed_forward.w2.weight"},
                               {"layers.#.moe.norm", "layers.#.ffn_norm.weight"},
                               {"layers.#.moe.router", "layers.#.feed_forward.gate.weight"},
                               {"layers.#.moe.experts.#.w_gate", "layers.#.feed_forward.experts.#.w1.weight"},
                               {"layers.#.moe.experts.#.w_up", "layers.#.feed_forward.experts.#.w3.weight"},
                               {"layers.#.moe.experts.#.w_down", "layers.#.feed_forward.experts.#.w2.weight"},
                               {"head.norm", "norm.weight"},
                               {"head.weight", "output.weight"}});

constexpr std::string_view instead_of_params =
    "the same model's config.json and model*.safetensors may be read: get them from its repository";
/// (key, what such a model is)
constexpr auto refused_params = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"vision_encoder", "belongs to a model of images"},
    {"multimodal", "belongs to a model of images or sounds"},
    {"quantization", "means quantized weights"},
    {"lora", "means adapters in the model's own files"},
    {"yarn", "stretches the rotation"},
    {"llama_4_scaling", "scales queries by their position"},
    {"q_lora_rank", "belongs to latent attention"},
    {"kv_lora_rank", "belongs to latent attention"},
    {"qk_rope_head_dim", "belongs to latent attention"},
    {"qk_nope_head_dim", "belongs to latent attention"},
    {"v_head_dim", "belongs to latent attention"},
});
/// They say nothing of the model.
constexpr auto idle_params = std::to_array<std::string_view>({"max_batch_size", "dtype"});

const Family& params_family() {
  static const Family own = {.type = "params.json", .architecture = "Mistral's own", .names = params_names};
  return own;
}

class ParamsReader {
 public:
  ParamsReader(const JsonNode& root, const std::string& file, std::vector<Fault>& faults)
      : file_(file), faults_(faults), params_(root, file, faults) {}

  ModelSource read() {
    ModelKeys m;
    m.width = params_.needed("dim"), m.layers = params_.needed("n_layers"), m.heads = params_.needed("n_heads");
    m.kv_heads = params_.whole("n_kv_heads", m.heads), m.ff_width = params_.needed("hidden_dim"), m.vocab = params_.needed("vocab_size");
    m.head_dim = params_.whole("head_dim", m.heads > 0 ? m.width / m.heads : 0);
    m.norm_eps = params_.real("norm_eps", 1e-5);
    m.tied = params_.truth("tied_embeddings", false);
    read_rotation(m);
    read_experts(m);
    const std::int64_t context = params_.whole("max_position_embeddings", params_.whole("max_seq_len", 0));
    if (const std::string type = params_.text("model_type", "transformer"); type != "transformer")
      params_.fault("model_type", fmt::format("{} cannot be read; only \"transformer\" can", toml_string(shortened(type))));
    if (const std::string activation = params_.text("activation", "silu"); activation != "silu")
      params_.fault("activation", fmt::format("{} cannot be read; only \"silu\" can", toml_string(shortened(activation))));
    if (!params_.truth("causal", true)) params_.fault("causal", "a model without a causal mask cannot be read");
    for (const auto& [key, what] : refused_params)
      if (params_.find(key)) params_.fault(key, fmt::format("{}, which cannot be read from params.json; {}", what, instead_of_params));
    read_windows(m);
    refuse_unknown();
    return {.model = m,
            .context = context,
            .from = fmt::format("Mistral's own layout, {}", toml_string(file_)),
            .architecture = m.experts > 0 ? "Mixtral" : "Mistral",
            .family = &params_family()};
  }

 private:
  /// What the file leaves out mistral-inference takes to be 1e6, and transformers' converter to be 1e4.
  void read_rotation(ModelKeys& m) {
    m.rope_scaling = RopeMode::none;
    if (params_.find("rope_theta"))
      m.rope_theta = params_.real("rope_theta", 0);
    else
      params_.fault("rope_theta",
                    "is missing, and readers assume different values: add it to the file, 1e4 for a Mistral 7B v0.1, 1e6 for later models");
  }

  void read_experts(ModelKeys& m) {
    const JsonNode* moe = params_.find("moe");
    if (!moe) return;
    if (moe->kind != JsonNode::Kind::object) return params_.wrong(*moe, "an object with num_experts and num_experts_per_tok");
    ConfigReader experts(*moe, file_, faults_);
    m.experts = experts.needed("num_experts"), m.experts_per_token = experts.needed("num_experts_per_tok");
    m.expert_ff_width = m.ff_width;
    m.normalize_top_k = true;
    for (const JsonNode& node : moe->children)
      if (node.kind != JsonNode::Kind::null && !experts.knows(node.name))
        params_.fault_at_name(
            node, fmt::format("cannot be read from params.json: experts must be those of a Mixtral here; {}", instead_of_params));
  }

  /// A number, or one a layer, which are repeated; null: all keys.
  void read_windows(ModelKeys& m) {
    const JsonNode* said = params_.find("sliding_window");
    if (!said || m.layers < 1 || m.layers > 10'000) return;
    const bool list = said->kind == JsonNode::Kind::list;
    if (list && (said->children.empty() || static_cast<std::size_t>(m.layers) % said->children.size() != 0))
      return params_.fault(*said, fmt::format("has {} numbers, of which {} layers are not a multiple", said->children.size(), m.layers));
    std::vector<LayerKeys> layers;
    for (std::int64_t i = 0; i < m.layers; ++i) {
      const JsonNode& one = list ? said->children[static_cast<std::size_t>(i) % said->children.size()] : *said;
      LayerKeys keys{.rope_theta = m.rope_theta, .rope_scaling = m.rope_scaling};
      keys.experts = true;
      if (one.kind != JsonNode::Kind::null) keys.window = params_.whole(one);
      layers.push_back(keys);
    }
    set_layers(m, layers);
  }

  void refuse_unknown() {
    for (const JsonNode& node : params_.members())
      if (node.kind != JsonNode::Kind::null && !params_.knows(node.name) && std::ranges::find(idle_params, node.name) == idle_params.end())
        params_.fault_at_name(node,
                              "is not a known key of params.json, so a deck may not describe the model fully; if no number depends on it, "
                              "remove it from the file");
  }

  const std::string& file_;
  std::vector<Fault>& faults_;
  ConfigReader params_;
};

}  // namespace

ModelSource read_mistral_params(const std::string& text, const std::string& file, std::vector<Fault>& faults) {
  JsonNode root;
  if (!read_json(text, file, root, faults)) return {};
  return ParamsReader(root, file, faults).read();
}

}  // namespace tessera
