// GLM-4.5: experts that are chosen by sigmoids and a bias of each, an expert of all tokens without a gate, first layers without experts,
// and a rotation of a part of each head. The router is DeepSeek-V3's. dots.llm1 has the same experts and the attention of a Qwen3.
#include <algorithm>
#include <array>

#include "families/layers.hpp"

namespace tessera {
namespace {

/// Its several shared experts are one of their widths together.
void read_shared(ConfigReader& config, ModelKeys& m) {
  const std::int64_t shared = config.whole("n_shared_experts", 1);
  if (shared < 1 || shared > 4096) return config.fault("n_shared_experts", "is not a number of shared experts, 1 or more");
  m.shared_ff_width = shared * m.expert_ff_width;
}
void read_dots1(ConfigReader& config, ModelKeys& m) {
  for (const char* key : {"n_shared_experts", "num_experts_per_tok"}) config.needed(key);
  if (!config.find("num_local_experts")) config.needed("n_routed_experts");
  if (config.find("n_shared_experts")) read_shared(config, m);
  if (const std::string by = config.text("scoring_func", "sigmoid"); by != "sigmoid" && by != "noaux_tc")
    config.fault("scoring_func", "differs from the score of experts that the class of this model_type computes");
  if (config.text("topk_method", "noaux_tc") != "noaux_tc")
    config.fault("topk_method", "differs from the choice of experts that the class of this model_type computes");
  if (config.whole("moe_layer_freq", 1) != 1)
    config.fault("moe_layer_freq", "is not 1, but the class of this model_type has experts in each layer");
}
void put_shared(Json& c, const ModelKeys& m) { c["n_shared_experts"] = m.shared_ff_width / std::max<std::int64_t>(m.expert_ff_width, 1); }

bool slides_from(std::int64_t layer, std::int64_t first) { return layer >= first; }

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
constexpr auto shared_width = std::to_array<TraitField>({&ModelKeys::shared_ff_width});

constexpr auto dots1_keys = std::span(glm4_moe_keys).subspan<3, 9>();

constexpr auto glm4_moe_names = std::to_array<TensorName>(
    {{.ours = "layers.#.moe.router_bias", .theirs = "model.layers.#.mlp.gate.e_score_correction_bias", .fp32 = true},
     {"layers.#.moe.shared.w_gate", "model.layers.#.mlp.shared_experts.gate_proj.weight"},
     {"layers.#.moe.shared.w_up", "model.layers.#.mlp.shared_experts.up_proj.weight"},
     {"layers.#.moe.shared.w_down", "model.layers.#.mlp.shared_experts.down_proj.weight"}});

}  // namespace

Family glm4_moe_family() {
  return {.type = "glm4_moe",
          .architecture = "Glm4MoeForCausalLM",
          .turn = 1,
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
          .says = shared_width,
          .rotation = {.partial = true},
          .read_model = read_shared,
          .put_model = put_shared,
          .further_layers = 1,
          .keys = glm4_moe_keys,
          .names = glm4_moe_names};
}

Family dots1_family() {
  return {.type = "dots1",
          .architecture = "Dots1ForCausalLM",
          .standard = {.kv_heads = 32,
                       .norm_eps = 1e-6,
                       .qk_norm = true,
                       .experts_per_token = 0,
                       .shared_gate = false,
                       .normalize_top_k = false,
                       .router_scores = RouterScores::sigmoid,
                       .router_balance = RouterBalance::bias},
          .says = shared_width,
          .window = {.key = WindowRule::Key::always,
                     .standard = 4096,
                     .lists = true,
                     .slides = slides_from,
                     .number_key = "max_window_layers",
                     .number = 62},
          .read_model = read_dots1,
          .put_model = put_shared,
          .output_bias = true,
          .keys = dots1_keys,
          .names = glm4_moe_names};
}

}  // namespace tessera
