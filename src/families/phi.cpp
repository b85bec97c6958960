// Phi-1, 1.5 and 2: attention beside a feed-forward block without a gate, behind one LayerNorm; biases of all products, the head's too; a
// rotation of a part of each head.
#include <array>

#include "base/json.hpp"
#include "families/layers.hpp"

namespace tessera {
namespace {

void read_phi(ConfigReader& config, ModelKeys&) {
  if (config.truth("qk_layernorm", false))
    config.fault("qk_layernorm", "LayerNorm of queries and keys, with a bias, is not in this version");
  note_dropout(config, {"attention_dropout", "resid_pdrop", "embd_pdrop"}, 0);
}

/// Its class knows its own name of the one key alone, and its files have the other where it says something.
void put_phi(Json& config, const ModelKeys& m) {
  config.erase("rms_norm_eps");
  if (m.heads * m.head_dim == m.width) config.erase("head_dim");
}

constexpr auto phi_keys = std::to_array<FamilyKey>({{.name = "layer_norm_eps", .field = &ModelKeys::norm_eps},
                                                    {.name = "partial_rotary_factor", .field = &ModelKeys::rotary_fraction},
                                                    {.name = "qk_layernorm", .fixed = "false"},
                                                    {.name = "attention_dropout", .fixed = "0.0"},
                                                    {.name = "resid_pdrop", .fixed = "0.0"},
                                                    {.name = "embd_pdrop", .fixed = "0.0"}});

constexpr auto phi_names = std::to_array<TensorName>({{"layers.#.attention.wo", "model.layers.#.self_attn.dense.weight"},
                                                      {"layers.#.attention.bo", "model.layers.#.self_attn.dense.bias"},
                                                      {"layers.#.mlp.w_up", "model.layers.#.mlp.fc1.weight"},
                                                      {"layers.#.mlp.b_up", "model.layers.#.mlp.fc1.bias"},
                                                      {"layers.#.mlp.w_down", "model.layers.#.mlp.fc2.weight"},
                                                      {"layers.#.mlp.b_down", "model.layers.#.mlp.fc2.bias"},
                                                      {"head.norm", "model.final_layernorm.weight"},
                                                      {"head.norm_bias", "model.final_layernorm.bias"}});

}  // namespace

Family phi_family() {
  return {.type = "phi",
          .architecture = "PhiForCausalLM",
          .standard = {.norm_eps = 1e-5,
                       .qkv_bias = true,
                       .attention_out_bias = true,
                       .norm_placement = NormPlacement::parallel,
                       .norm_form = NormForm::layer_norm,
                       .activation = Activation::gelu_tanh,
                       .gated = false,
                       .mlp_bias = true,
                       .head_bias = true,
                       .rotary_fraction = 0.5,
                       .max_context = 2048},
          .rotation = {.partial = true},
          .read_model = read_phi,
          .put_model = put_phi,
          .dropout = true,
          .keys = phi_keys,
          .names = phi_names};
}

}  // namespace tessera
