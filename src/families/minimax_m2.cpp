// MiniMax-M2: experts by sigmoids and a bias of each, as many names of a Mixtral; norms of queries and keys over all heads; a rotation of a
// part of each head.
#include <array>

#include "deck/kinds_of_layers.hpp"
#include "families/layers.hpp"

namespace tessera {
namespace {

/// Of MiniMax's own program: the class computes what these say, and reads none of them.
void require_same_block(ConfigReader& config) {
  const auto differs = [&](const char* key) { config.fault(key, "differs from the block that the class of this model_type computes"); };
  for (const char* key : {"use_qk_norm", "use_routing_bias"})
    if (!config.truth(key, true)) differs(key);
  if (config.text("qk_norm_type", "per_layer") != "per_layer") differs("qk_norm_type");
  if (config.text("scoring_func", "sigmoid") != "sigmoid") differs("scoring_func");
  if (config.whole("shared_intermediate_size", 0) != 0) differs("shared_intermediate_size");
  if (const JsonNode* types = config.find("attn_type_list"))
    for (const JsonNode& type : types->children)
      if (config.whole(type) != 1) return differs("attn_type_list");
}

/// Its first files have it in place of partial_rotary_factor.
void read_rotated_part(ConfigReader& config, ModelKeys& m) {
  const JsonNode* rotated = config.find("rotary_dim");
  if (!rotated) return;
  const std::int64_t features = config.whole(*rotated);
  if (features < 2 || features % 2 != 0 || features > m.head_dim)
    return config.fault("rotary_dim", "is not an even number of a head's features");
  if (m.rotary_fraction != 1 && rotated_features(m) != features)
    return config.fault("rotary_dim", "contradicts partial_rotary_factor; leave one of the two out");
  m.rotary_fraction = static_cast<double>(features) / static_cast<double>(m.head_dim);
}

void read_minimax_m2(ConfigReader& config, ModelKeys& m) {
  require_same_block(config);
  read_rotated_part(config, m);
  for (const char* key : {"mtp_transformer_layers", "use_mtp", "mlp_intermediate_size"}) config.find(key);
  if (config.whole("num_mtp_modules", 0) > 0)
    config.unused("num_mtp_modules (layers that predict further tokens are left out, and an export has none)");
}

void put_rotated_part(Json& c, const ModelKeys& m) { c["rotary_dim"] = rotated_features(m); }

constexpr auto minimax_m2_keys = std::to_array<FamilyKey>({{.name = "num_experts_per_tok", .field = &ModelKeys::experts_per_token},
                                                           {.name = "output_router_logits", .fixed = "false"},
                                                           {.name = "num_local_experts", .field = &ModelKeys::experts},
                                                           {.name = "intermediate_size", .field = &ModelKeys::expert_ff_width},
                                                           {.name = "partial_rotary_factor", .field = &ModelKeys::rotary_fraction},
                                                           {.name = "router_jitter_noise", .fixed = "0.0"}});

// The biases lie in the type of the weights.
constexpr auto minimax_m2_names =
    std::to_array<TensorName>({{"layers.#.moe.router", "model.layers.#.block_sparse_moe.gate.weight"},
                               {"layers.#.moe.router_bias", "model.layers.#.block_sparse_moe.e_score_correction_bias"},
                               {"layers.#.moe.experts.#.w_gate", "model.layers.#.block_sparse_moe.experts.#.w1.weight"},
                               {"layers.#.moe.experts.#.w_up", "model.layers.#.block_sparse_moe.experts.#.w3.weight"},
                               {"layers.#.moe.experts.#.w_down", "model.layers.#.block_sparse_moe.experts.#.w2.weight"}});

}  // namespace

Family minimax_m2_family() {
  return {.type = "minimax_m2",
          .architecture = "MiniMaxM2ForCausalLM",
          .standard = {.kv_heads = 8,
                       .head_dim = 128,
                       .norm_eps = 1e-6,
                       .qk_norm = true,
                       .wide_qk_norm = true,
                       .rope_theta = 5e6,
                       .experts = 256,
                       .experts_per_token = 8,
                       .router_scores = RouterScores::sigmoid,
                       .router_balance = RouterBalance::bias},
          .window = {.key = WindowRule::Key::none},
          .rotation = {.partial = true},
          .read_model = read_minimax_m2,
          .put_model = put_rotated_part,
          .own_code = true,
          .keys = minimax_m2_keys,
          .names = minimax_m2_names};
}

}  // namespace tessera
