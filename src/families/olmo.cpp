// OLMo 2 and 3: norms of what blocks add to the stream, and of queries and keys over all heads together; OLMo 3 with a window on three of
// four layers, which are not scaled. OLMoE: the same norms of queries and keys, and experts, between norms of the usual kind.
#include <array>

#include "families/layers.hpp"

namespace tessera {
namespace {

bool has_parts_for_heads(const ModelKeys& m) { return m.heads * m.head_dim == m.width; }

constexpr auto olmo_names = std::to_array<TensorName>({{"layers.#.attention.post_norm", "model.layers.#.post_attention_layernorm.weight"},
                                                       {"layers.#.mlp.post_norm", "model.layers.#.post_feedforward_layernorm.weight"}});

constexpr auto olmoe_keys = std::to_array<FamilyKey>(
    {{.name = "num_experts_per_tok", .field = &ModelKeys::experts_per_token},
     {.name = "output_router_logits", .fixed = "false"},
     {.name = "num_experts", .field = &ModelKeys::experts},
     {.name = "intermediate_size", .field = &ModelKeys::expert_ff_width},
     {.name = "norm_topk_prob", .field = &ModelKeys::normalize_top_k},
     {.name = "clip_qkv", .fixed = "null", .why = "queries, keys and values that are clipped are not in this version"}});

}  // namespace

Family olmo2_family() {
  return {.type = "olmo2",
          .architecture = "Olmo2ForCausalLM",
          .standard = {.norm_eps = 1e-5, .qk_norm = true, .wide_qk_norm = true, .norm_placement = NormPlacement::post},
          .names = olmo_names};
}

Family olmo3_family() {
  return {
      .type = "olmo3",
      .architecture = "Olmo3ForCausalLM",
      .turn = 1,
      .standard = {.norm_eps = 1e-5, .qk_norm = true, .wide_qk_norm = true, .norm_placement = NormPlacement::post, .rope_theta = 500000},
      .window = {.key = WindowRule::Key::always, .standard = 4096, .lists = true, .slides = slides_but_each, .number = 4},
      .rotation = {.by_window = true},
      .names = olmo_names};
}

Family olmoe_family() {
  return {.type = "olmoe",
          .architecture = "OlmoeForCausalLM",
          .standard =
              {.norm_eps = 1e-5, .qk_norm = true, .wide_qk_norm = true, .experts = 64, .experts_per_token = 8, .normalize_top_k = false},
          .takes = has_parts_for_heads,
          .keys = olmoe_keys};
}

}  // namespace tessera
