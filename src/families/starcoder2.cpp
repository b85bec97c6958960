// StarCoder2: LayerNorm; a feed-forward block without a gate; biases of all products and norms, or of none.
#include <array>

#include "families/layers.hpp"

namespace tessera {
namespace {

constexpr auto starcoder2_says = std::to_array<TraitField>({&ModelKeys::attention_out_bias, &ModelKeys::mlp_bias});

void read_starcoder2(ConfigReader& config, ModelKeys& m) {
  m.attention_out_bias = m.mlp_bias = m.qkv_bias;
  note_dropout(config, {"attention_dropout", "residual_dropout", "embedding_dropout"}, 0);
}

/// Its class knows its own name of the key alone.
void put_starcoder2(Json& config, const ModelKeys&) { config.erase("rms_norm_eps"); }

constexpr auto starcoder2_keys = std::to_array<FamilyKey>({{.name = "norm_epsilon", .field = &ModelKeys::norm_eps},
                                                           {.name = "use_bias", .field = &ModelKeys::qkv_bias},
                                                           {.name = "norm_type", .fixed = "\"layer_norm\"", .why = "another norm"},
                                                           {.name = "attention_dropout", .fixed = "0.0"},
                                                           {.name = "residual_dropout", .fixed = "0.0"},
                                                           {.name = "embedding_dropout", .fixed = "0.0"}});

constexpr auto starcoder2_names = std::to_array<TensorName>({{"layers.#.mlp.w_up", "model.layers.#.mlp.c_fc.weight"},
                                                             {"layers.#.mlp.b_up", "model.layers.#.mlp.c_fc.bias"},
                                                             {"layers.#.mlp.w_down", "model.layers.#.mlp.c_proj.weight"},
                                                             {"layers.#.mlp.b_down", "model.layers.#.mlp.c_proj.bias"}});

}  // namespace

Family starcoder2_family() {
  return {.type = "starcoder2",
          .architecture = "Starcoder2ForCausalLM",
          .standard = {.kv_heads = 2,
                       .norm_eps = 1e-5,
                       .tied = true,
                       .qkv_bias = true,
                       .norm_form = NormForm::layer_norm,
                       .activation = Activation::gelu_tanh,
                       .gated = false},
          .says = starcoder2_says,
          .window = {.key = WindowRule::Key::always},
          .read_model = read_starcoder2,
          .put_model = put_starcoder2,
          .dropout = true,
          .keys = starcoder2_keys,
          .names = starcoder2_names};
}

}  // namespace tessera
