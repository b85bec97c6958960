// GPT-OSS: sinks in attention; a window on every other layer; biases of all products; experts with a clamped SwiGLU, whose gates and halves
// lie in turns in tensors that are turned, or in MXFP4.
#include <array>

#include "families/layers.hpp"

namespace tessera {
namespace {

constexpr auto gpt_oss_says = std::to_array<TraitField>({&ModelKeys::attention_out_bias});

/// Of files that do not say it every other layer has the window, the first one first.
bool slides_every_other(std::int64_t layer, std::int64_t) { return layer % 2 == 0; }

/// attention_bias is of all four projections; hidden_act is the activation that is clamped.
void read_gpt_oss(ConfigReader& config, ModelKeys& m) {
  m.attention_out_bias = m.qkv_bias;
  if (m.activation != Activation::silu) config.fault("hidden_act", "is not \"silu\", which the class of this model_type always computes");
  m.activation = Activation::clamped_silu;
}

constexpr auto gpt_oss_keys = std::to_array<FamilyKey>(
    {{.name = "attention_bias", .field = &ModelKeys::qkv_bias},
     {.name = "num_experts_per_tok", .field = &ModelKeys::experts_per_token, .also = "experts_per_token"},
     {.name = "output_router_logits", .fixed = "false"},
     {.name = "num_local_experts", .field = &ModelKeys::experts, .also = "num_experts"},
     {.name = "intermediate_size", .field = &ModelKeys::expert_ff_width},
     {.name = "swiglu_alpha", .fixed = "1.702", .why = "gates with another factor than 1.702 are not in this version"},
     {.name = "swiglu_limit", .field = &ModelKeys::gate_limit}});

constexpr std::string_view gate_up = "model.layers.#.mlp.experts.gate_up_proj",
                           gate_up_bias = "model.layers.#.mlp.experts.gate_up_proj_bias";
constexpr auto gpt_oss_names =
    std::to_array<TensorName>({{"layers.#.attention.sinks", "model.layers.#.self_attn.sinks"},
                               {"layers.#.moe.router", "model.layers.#.mlp.router.weight"},
                               {"layers.#.moe.b_router", "model.layers.#.mlp.router.bias"},
                               {"layers.#.moe.experts.#.w_gate", gate_up, Fused::experts, true, true},
                               {"layers.#.moe.experts.#.w_up", gate_up, Fused::experts, true, true},
                               {"layers.#.moe.experts.#.w_down", "model.layers.#.mlp.experts.down_proj", Fused::experts, true},
                               {"layers.#.moe.experts.#.b_gate", gate_up_bias, Fused::experts, false, true},
                               {"layers.#.moe.experts.#.b_up", gate_up_bias, Fused::experts, false, true},
                               {"layers.#.moe.experts.#.b_down", "model.layers.#.mlp.experts.down_proj_bias", Fused::experts}});

}  // namespace

Family gpt_oss_family() {
  return {.type = "gpt_oss",
          .architecture = "GptOssForCausalLM",
          .standard = {.kv_heads = 8,
                       .head_dim = 64,
                       .norm_eps = 1e-5,
                       .qkv_bias = true,
                       .attention_sinks = true,
                       .rope_theta = 150000,
                       .rope_scaling = RopeMode::yarn,
                       .rope_factor = 32,
                       .rope_original_context = 4096,
                       .rope_truncate = false,
                       .experts = 128,
                       .experts_per_token = 4,
                       .expert_bias = true},
          .says = gpt_oss_says,
          .window = {.key = WindowRule::Key::always, .standard = 128, .lists = true, .slides = slides_every_other},
          .read_model = read_gpt_oss,
          .mxfp4 = true,
          .keys = gpt_oss_keys,
          .names = gpt_oss_names};
}

}  // namespace tessera
