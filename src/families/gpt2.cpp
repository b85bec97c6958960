// GPT-2: LayerNorm and learned positions; a feed-forward block without a gate; biases of all products; and matrices that lie turned in its
// files, those of queries, keys and values in one.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "families/layers.hpp"

namespace tessera {
namespace {

void read_gpt2(ConfigReader& config, ModelKeys& m) {
  if (m.ff_width == 0) m.ff_width = 4 * m.width;
  const bool says_positions = config.find("n_positions") || config.find("max_position_embeddings");
  if (says_positions && m.learned_positions < 1) config.fault("n_positions", "is not a number of positions");
  if (m.heads > 0 && m.width % m.heads != 0) config.fault("n_head", fmt::format("{} does not divide n_embd {}", m.heads, m.width));
  if (!config.truth("scale_attn_weights", true)) m.attention_scale = 1;
  if (const JsonNode* layered = config.find("scale_attn_by_inverse_layer_idx"); layered && config.truth(*layered))
    config.fault(*layered, "scales of attention that differ from layer to layer are not in this version");
  if (const JsonNode* context = config.find("n_ctx"); context && says_positions && config.whole(*context) != m.learned_positions)
    config.fault(*context, "is not n_positions; leave one of the two out");
  if (config.truth("reorder_and_upcast_attn", false)) config.unused("reorder_and_upcast_attn (scores of attention are always fp32 here)");
  bool summary = false;
  for (const char* key : {"summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout", "summary_proj_to_labels"})
    summary |= config.find(key) != nullptr;
  if (summary) config.unused("summary_* (of heads for other tasks)");
  note_dropout(config, {"attn_pdrop", "resid_pdrop", "embd_pdrop"}, 0.1);
}

void read_positions(ConfigReader&, std::vector<LayerKeys>& layers) {
  for (LayerKeys& keys : layers) keys.positions = PositionMode::none;
}

void put_gpt2(Json& config, const ModelKeys& m) {
  config["n_ctx"] = m.learned_positions;
  if (m.activation == Activation::gelu_tanh) config["activation_function"] = "gelu_new";  // its class's own word
  config["scale_attn_weights"] = m.attention_scale != 1;
}

constexpr auto gpt2_own_keys =
    std::to_array<FamilyKey>({{.name = "vocab_size", .field = &ModelKeys::vocab, .required = true},
                              {.name = "n_positions", .field = &ModelKeys::learned_positions, .also = "max_position_embeddings"},
                              {.name = "n_embd", .field = &ModelKeys::width, .required = true, .also = "hidden_size"},
                              {.name = "n_layer", .field = &ModelKeys::layers, .required = true, .also = "num_hidden_layers"},
                              {.name = "n_head", .field = &ModelKeys::heads, .required = true, .also = "num_attention_heads"},
                              {.name = "n_inner", .field = &ModelKeys::ff_width},
                              {.name = "activation_function", .field = &ModelKeys::activation},
                              {.name = "layer_norm_epsilon", .field = &ModelKeys::norm_eps},
                              {.name = "tie_word_embeddings", .field = &ModelKeys::tied}});

constexpr auto gpt2_keys = std::to_array<FamilyKey>({{.name = "attn_pdrop", .fixed = "0.0"},
                                                     {.name = "resid_pdrop", .fixed = "0.0"},
                                                     {.name = "embd_pdrop", .fixed = "0.0"},
                                                     {.name = "scale_attn_by_inverse_layer_idx", .fixed = "false"},
                                                     {.name = "reorder_and_upcast_attn", .fixed = "false"}});

constexpr auto gpt2_says = std::to_array<TraitField>({&ModelKeys::attention_scale});  // 1, or that of its heads

constexpr std::string_view qkv = "transformer.h.#.attn.c_attn.weight", qkv_bias = "transformer.h.#.attn.c_attn.bias";
constexpr auto gpt2_names = std::to_array<TensorName>({{"embedding.weight", "transformer.wte.weight"},
                                                       {"embedding.positions", "transformer.wpe.weight"},
                                                       {"layers.#.attention.norm", "transformer.h.#.ln_1.weight"},
                                                       {"layers.#.attention.norm_bias", "transformer.h.#.ln_1.bias"},
                                                       {"layers.#.attention.wq", qkv, Fused::rows, true},
                                                       {"layers.#.attention.wk", qkv, Fused::rows, true},
                                                       {"layers.#.attention.wv", qkv, Fused::rows, true},
                                                       {"layers.#.attention.bq", qkv_bias, Fused::rows},
                                                       {"layers.#.attention.bk", qkv_bias, Fused::rows},
                                                       {"layers.#.attention.bv", qkv_bias, Fused::rows},
                                                       {"layers.#.attention.wo", "transformer.h.#.attn.c_proj.weight", Fused::no, true},
                                                       {"layers.#.attention.bo", "transformer.h.#.attn.c_proj.bias"},
                                                       {"layers.#.mlp.norm", "transformer.h.#.ln_2.weight"},
                                                       {"layers.#.mlp.norm_bias", "transformer.h.#.ln_2.bias"},
                                                       {"layers.#.mlp.w_up", "transformer.h.#.mlp.c_fc.weight", Fused::no, true},
                                                       {"layers.#.mlp.b_up", "transformer.h.#.mlp.c_fc.bias"},
                                                       {"layers.#.mlp.w_down", "transformer.h.#.mlp.c_proj.weight", Fused::no, true},
                                                       {"layers.#.mlp.b_down", "transformer.h.#.mlp.c_proj.bias"},
                                                       {"head.norm", "transformer.ln_f.weight"},
                                                       {"head.norm_bias", "transformer.ln_f.bias"}});

constexpr auto llmc_names = [] {
  auto names = gpt2_names;
  for (TensorName& name : names) name.turned = false;
  return names;
}();

constexpr std::array<std::string_view, 2> masks = {".attn.bias", ".attn.masked_bias"};

}  // namespace

Family gpt2_family() {
  return {.type = "gpt2",
          .architecture = "GPT2LMHeadModel",
          .standard = {.norm_eps = 1e-5,
                       .tied = true,
                       .qkv_bias = true,
                       .attention_out_bias = true,
                       .norm_form = NormForm::layer_norm,
                       .activation = Activation::gelu_tanh,
                       .gated = false,
                       .mlp_bias = true,
                       .positions = PositionMode::none,
                       .learned_positions = 1024},
          .says = gpt2_says,
          .read_model = read_gpt2,
          .put_model = put_gpt2,
          .read_layers = read_positions,
          .dropout = true,
          .own_keys = gpt2_own_keys,
          .keys = gpt2_keys,
          .names = gpt2_names,
          .prefix = "transformer.",
          .buffers = masks};
}

const Family& llmc_family() {
  static const Family family = [] {
    Family of_llmc = gpt2_family();
    of_llmc.names = llmc_names, of_llmc.prefix = {}, of_llmc.buffers = {};
    return of_llmc;
  }();
  return family;
}

}  // namespace tessera
