// StarCoder2: LayerNorm; a feed-forward block without a gate; biases of all products and norms, or of none.
#include <array>

#include "families/layers.hpp"

namespace tessera {
namespace {

bool is_starcoder2(const ModelKeys& m) {
  ModelKeys usual = m;
  const ModelKeys plain;
  usual.norm_form = plain.norm_form, usual.gated = true, usual.mlp_bias = usual.attention_out_bias = false;
  const LayerTraits traits = traits_of(usual);
  return m.norm_form == NormForm::layer_norm && !m.gated && m.mlp_bias == m.qkv_bias && m.attention_out_bias == m.qkv_bias &&
         m.experts == 0 && !m.qk_norm && m.activation != Activation::xielu && traits.usual_blocks && traits.one_rotation &&
         traits.all_rotated && (traits.no_window || traits.all_windows);
}

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
          .has = is_starcoder2,
          .standard = {.kv_heads = 2,
                       .norm_eps = 1e-5,
                       .tied = true,
                       .qkv_bias = true,
                       .norm_form = NormForm::layer_norm,
                       .activation = Activation::gelu_tanh,
                       .gated = false},
          .window = {.key = WindowRule::Key::always},
          .read_model = read_starcoder2,
          .put_model = put_starcoder2,
          .dropout = true,
          .keys = starcoder2_keys,
          .names = starcoder2_names};
}

}  // namespace tessera
