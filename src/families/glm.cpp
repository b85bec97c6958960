// GLM-4 9B and 32B: the rotation turns neighbouring features of a part of each head, and gate and up lie in one tensor. The older (glm) has
// norms before blocks, the newer (glm4) after them too.
#include <array>

#include "families/layers.hpp"

namespace tessera {
namespace {

bool is_glm_with(NormPlacement norms, const ModelKeys& m) {
  ModelKeys usual = m;
  const ModelKeys plain;
  usual.norm_placement = plain.norm_placement, usual.rotary_fraction = plain.rotary_fraction, usual.rope_pairs = plain.rope_pairs;
  const LayerTraits traits = traits_of(usual);
  return m.norm_placement == norms && m.rope_pairs == RopePairs::neighbours && m.experts == 0 && !m.qk_norm && traits.usual_blocks &&
         traits.no_window && traits.one_rotation && traits.all_rotated;
}
bool is_glm(const ModelKeys& m) { return is_glm_with(NormPlacement::pre, m); }
bool is_glm4(const ModelKeys& m) { return is_glm_with(NormPlacement::both, m); }

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
          .has = is_glm,
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
  family.type = "glm4", family.architecture = "Glm4ForCausalLM", family.has = is_glm4, family.names = glm_names;
  family.standard.norm_placement = NormPlacement::both;
  return family;
}

}  // namespace tessera
