// Granite 3 and 4 without Mamba's layers: a Llama with four multipliers, or a Mixtral, whose experts' matrices lie in fused tensors.
#include <array>
#include <cmath>

#include "families/layers.hpp"

namespace tessera {
namespace {

/// All but its MLP.
bool has_multipliers(const ModelKeys& m) {
  ModelKeys usual = m;
  const ModelKeys plain;
  usual.embedding_scale = plain.embedding_scale, usual.residual_scale = plain.residual_scale, usual.logit_scale = plain.logit_scale;
  usual.attention_scale = plain.attention_scale;
  const LayerTraits traits = traits_of(usual);
  return !m.qk_norm && !m.qkv_bias && traits.usual_blocks && !traits_of(m).usual_blocks && traits.no_window && traits.one_rotation &&
         traits.all_rotated;
}
bool is_granite(const ModelKeys& m) { return m.experts == 0 && has_multipliers(m); }
/// Its weights of experts are a softmax over those that were chosen.
bool is_granitemoe(const ModelKeys& m) { return m.experts > 0 && m.shared_ff_width == 0 && m.normalize_top_k && has_multipliers(m); }

void read_multipliers(ConfigReader& config, ModelKeys& m) {
  const auto above_zero = [&](const char* key) {
    const double value = config.real(key, 1);
    if (value > 0) return value;
    config.fault(key, "is no number above 0");
    return 1.0;
  };
  m.embedding_scale = above_zero("embedding_multiplier"), m.residual_scale = above_zero("residual_multiplier");
  m.attention_scale = above_zero("attention_multiplier"), m.logit_scale = 1 / above_zero("logits_scaling");
}

void put_multipliers(Json& c, const ModelKeys& m) {
  c["embedding_multiplier"] = m.embedding_scale == 0 ? std::sqrt(static_cast<double>(m.width)) : m.embedding_scale;
  c["residual_multiplier"] = m.residual_scale;
  c["attention_multiplier"] = m.attention_scale == 0 ? 1 / std::sqrt(static_cast<double>(m.head_dim)) : m.attention_scale;
  c["logits_scaling"] = inverse_of(m.logit_scale);
}

constexpr auto granite_keys = std::to_array<FamilyKey>({{.name = "mlp_bias", .fixed = "false"}});

constexpr auto granitemoe_keys = std::to_array<FamilyKey>({{.name = "num_experts_per_tok", .field = &ModelKeys::experts_per_token},
                                                           {.name = "output_router_logits", .fixed = "false"},
                                                           {.name = "num_local_experts", .field = &ModelKeys::experts},
                                                           {.name = "intermediate_size", .field = &ModelKeys::expert_ff_width}});

constexpr auto granitemoe_names =
    std::to_array<TensorName>({{"layers.#.moe.router", "model.layers.#.block_sparse_moe.router.layer.weight"},
                               {"layers.#.moe.experts.#.w_gate", "model.layers.#.block_sparse_moe.input_linear.weight", Fused::experts},
                               {"layers.#.moe.experts.#.w_up", "model.layers.#.block_sparse_moe.input_linear.weight", Fused::experts},
                               {"layers.#.moe.experts.#.w_down", "model.layers.#.block_sparse_moe.output_linear.weight", Fused::experts}});

}  // namespace

Family granite_family() {
  return {.type = "granite",
          .architecture = "GraniteForCausalLM",
          .has = is_granite,
          .standard = {.norm_eps = 1e-6},
          .read_model = read_multipliers,
          .put_model = put_multipliers,
          .keys = granite_keys};
}

Family granitemoe_family() {
  return {.type = "granitemoe",
          .architecture = "GraniteMoeForCausalLM",
          .has = is_granitemoe,
          .standard = {.norm_eps = 1e-6, .experts = 8, .experts_per_token = 2},
          .read_model = read_multipliers,
          .put_model = put_multipliers,
          .keys = granitemoe_keys,
          .names = granitemoe_names};
}

}  // namespace tessera
