// GLM-4 9B and 32B: the rotation turns neighbouring features of a part of each head, and gate and up lie in one tensor. The older (glm) has
// norms before blocks, the newer (glm4) after them too.
#include <array>

#include "families/layers.hpp"

namespace tessera {
namespace {

// Its attention_bias is of queries, keys and values.
constexpr auto glm_keys = std::to_array<FamilyKey>(
    {{.name = "attention_bias", .field = &ModelKeys::qkv_bias}, {.name = "partial_rotary_factor", .field = &ModelKeys::rotary_fraction}});

constexpr auto glm_names = std::to_array<TensorName>({{"layers.#.mlp.w_gate", "model.layers.#.mlp.gate_up_proj.weight", Fused::rows},
                                                      {"layers.#.mlp.w_up", "model.layers.#.mlp.gate_up_proj.weight", Fused::rows},
                                                      {"layers.#.attention.post_norm", "model.layers.#.post_self_attn_layernorm.weight"},
                                                      {"layers.#.mlp.post_norm", "model.layers.#.post_mlp_layernorm.weight"}});

}  // namespace

Family glm_family() {
  return {.type = "glm",
          .architecture = "GlmForCausalLM",
          .standard = {.kv_heads = 2,
                       .head_dim = 128,
                       .norm_eps = 0.00000015625,
                       .qkv_bias = true,
                       .rotary_fraction = 0.5,
                       .rope_pairs = RopePairs::neighbours},
          .rotation = {.partial = true},
          .keys = glm_keys,
          .names = std::span(glm_names).first(2)};
}

Family glm4_family() {
  Family family = glm_family();
  family.type = "glm4", family.architecture = "Glm4ForCausalLM", family.names = glm_names;
  family.standard.norm_placement = NormPlacement::both;
  return family;
}

}  // namespace tessera
