// GLM-4.5: experts that are chosen by sigmoids and a bias of each, an expert of all tokens without a gate, first layers without experts,
// and a rotation of a part of each head. The router is DeepSeek-V3's.
#include <array>

#include "families/layers.hpp"

namespace tessera {
namespace {

bool is_glm4_moe(const ModelKeys& m) {
  ModelKeys usual = m;
  const ModelKeys plain;
  usual.rotary_fraction = plain.rotary_fraction, usual.dense_layers = plain.dense_layers, usual.shared_gate = plain.shared_gate;
  usual.router_scores = plain.router_scores, usual.router_scale = plain.router_scale;
  usual.expert_groups = plain.expert_groups, usual.groups_per_token = plain.groups_per_token;
  const LayerTraits traits = traits_of(usual);
  return m.experts > 0 && m.router_scores == RouterScores::sigmoid && m.router_balance == RouterBalance::bias && !m.shared_gate &&
         m.shared_ff_width > 0 && m.expert_ff_width > 0 && m.shared_ff_width % m.expert_ff_width == 0 && traits.usual_blocks &&
         traits.no_window && traits.one_rotation && traits.all_rotated;
}

/// Its several shared experts are one of their widths together.
void read_shared(ConfigReader& config, ModelKeys& m) {
  const std::int64_t shared = config.whole("n_shared_experts", 1);
  if (shared < 1 || shared > 4096) return config.fault("n_shared_experts", "is no number of experts that take every token, 1 or more");
  m.shared_ff_width = shared * m.expert_ff_width;
}
void put_shared(Json& c, const ModelKeys& m) { c["n_shared_experts"] = m.shared_ff_width / m.expert_ff_width; }

// Its attention_bias is of queries, keys and values.
constexpr auto glm4_moe_keys =
    std::to_array<FamilyKey>({{.name = "attention_bias", .field = &ModelKeys::qkv_bias},
                              {.name = "partial_rotary_factor", .field = &ModelKeys::rotary_fraction},
                              {.name = "use_qk_norm", .field = &ModelKeys::qk_norm},
                              {.name = "n_routed_experts", .field = &ModelKeys::experts, .also = "num_local_experts"},
                              {.name = "num_experts_per_tok", .field = &ModelKeys::experts_per_token},
                              {.name = "moe_intermediate_size", .field = &ModelKeys::expert_ff_width},
                              {.name = "first_k_dense_replace", .field = &ModelKeys::dense_layers},
                              {.name = "norm_topk_prob", .field = &ModelKeys::normalize_top_k},
                              {.name = "routed_scaling_factor", .field = &ModelKeys::router_scale},
                              {.name = "n_group", .field = &ModelKeys::expert_groups},
                              {.name = "topk_group", .field = &ModelKeys::groups_per_token},
                              {.name = "output_router_logits", .fixed = "false"},
                              {.name = "num_nextn_predict_layers", .fixed = "0"}});

constexpr auto glm4_moe_names =
    std::to_array<TensorName>({{"layers.#.moe.router_bias", "model.layers.#.mlp.gate.e_score_correction_bias"},
                               {"layers.#.moe.shared.w_gate", "model.layers.#.mlp.shared_experts.gate_proj.weight"},
                               {"layers.#.moe.shared.w_up", "model.layers.#.mlp.shared_experts.up_proj.weight"},
                               {"layers.#.moe.shared.w_down", "model.layers.#.mlp.shared_experts.down_proj.weight"}});

}  // namespace

Family glm4_moe_family() {
  return {.type = "glm4_moe",
          .architecture = "Glm4MoeForCausalLM",
          .has = is_glm4_moe,
          .standard = {.kv_heads = 8,
                       .norm_eps = 1e-5,
                       .rotary_fraction = 0.5,
                       .experts = 128,
                       .dense_layers = 1,
                       .experts_per_token = 8,
                       .expert_ff_width = 1408,
                       .shared_ff_width = 1408,
                       .shared_gate = false,
                       .router_scores = RouterScores::sigmoid,
                       .router_balance = RouterBalance::bias},
          .rotation = {.partial = true},
          .read_model = read_shared,
          .put_model = put_shared,
          .further_layers = 1,
          .keys = glm4_moe_keys,
          .names = glm4_moe_names};
}

}  // namespace tessera
