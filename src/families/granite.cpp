// Granite 3 and 4 without Mamba's layers: a Llama with four multipliers, or a Mixtral, whose experts' matrices lie in fused tensors, with
// an expert of all tokens beside them or without. Of granitemoehybrid that expert stands alone where there are no others, and positions may
// be none.
#include <algorithm>
#include <array>
#include <cmath>

#include "families/layers.hpp"

namespace tessera {
namespace {

constexpr auto granite_says = std::to_array<TraitField>({&ModelKeys::embedding_scale, &ModelKeys::residual_scale,
                                                         &ModelKeys::attention_scale, &ModelKeys::logit_scale, &ModelKeys::shared_gate});
constexpr auto multipliers = std::span(granite_says).first<4>();

void read_multipliers(ConfigReader& config, ModelKeys& m) {
  const auto above_zero = [&](const char* key) {
    const double value = config.real(key, 1);
    if (value > 0) return value;
    config.fault(key, "is not a number above 0");
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

/// Of layers that there are none of here.
constexpr auto keys_of_mamba = std::to_array<const char*>(
    {"mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_head", "mamba_d_conv", "mamba_expand", "mamba_chunk_size",
     "mamba_conv_bias", "mamba_proj_bias", "time_step_min", "time_step_max", "time_step_floor", "time_step_limit", "init_method"});

/// Its class rotates queries and keys by this word alone.
bool rotates(ConfigReader& config) { return config.text("position_embedding_type", "") == "rope"; }

void require_experts(ConfigReader& config, const ModelKeys& m) {
  if (m.experts < 1) config.fault("num_local_experts", "is not a number of experts, which each layer of this model_type has");
}

void read_granite_shared(ConfigReader& config, ModelKeys& m) {
  read_multipliers(config, m);
  require_experts(config, m);
  if (m.shared_ff_width == 0) m.shared_gate = ModelKeys{}.shared_gate;
}

/// Without experts that of all tokens is the feed-forward block.
void read_hybrid(ConfigReader& config, ModelKeys& m) {
  read_multipliers(config, m);
  for (const char* key : keys_of_mamba) config.find(key);
  if (config.text("normalization_function", "rmsnorm") != "rmsnorm")
    config.fault("normalization_function", "differs from the norm that the class of this model_type computes");
  if (m.shared_ff_width < 1) config.fault("shared_intermediate_size", "is not a width of a feed-forward block");
  const ModelKeys plain;
  if (m.experts == 0) {
    m.ff_width = m.shared_ff_width, m.shared_ff_width = 0, m.shared_gate = plain.shared_gate;
    m.experts_per_token = plain.experts_per_token, m.expert_ff_width = plain.expert_ff_width;
  }
  if (!rotates(config)) m.rope_theta = plain.rope_theta, m.rope_scaling = plain.rope_scaling;
}

void read_granite_positions(ConfigReader& config, std::vector<LayerKeys>& layers) {
  if (!rotates(config))
    for (LayerKeys& keys : layers) keys.positions = PositionMode::none;
}

void put_hybrid(Json& c, const ModelKeys& m) {
  put_multipliers(c, m);
  c["position_embedding_type"] = "nope";
  c["layer_types"] = std::vector<std::string>(static_cast<std::size_t>(m.layers), "attention");
  c["mamba_n_heads"] = 1;  // which divides any width, as the class asks for
  if (m.experts > 0) return;
  c["intermediate_size"] = c["shared_intermediate_size"] = m.ff_width;
  c["num_experts_per_tok"] = 0;
}

constexpr auto granite_keys = std::to_array<FamilyKey>({{.name = "mlp_bias", .fixed = "false"}});

constexpr auto shared_expert_keys = std::to_array<FamilyKey>({{.name = "num_experts_per_tok", .field = &ModelKeys::experts_per_token},
                                                              {.name = "output_router_logits", .fixed = "false"},
                                                              {.name = "num_local_experts", .field = &ModelKeys::experts},
                                                              {.name = "intermediate_size", .field = &ModelKeys::expert_ff_width},
                                                              {.name = "shared_intermediate_size", .field = &ModelKeys::shared_ff_width}});
constexpr auto granitemoe_keys = std::span(shared_expert_keys).first<4>();

constexpr auto hybrid_names =
    std::to_array<TensorName>({{"layers.#.moe.router", "model.layers.#.block_sparse_moe.router.layer.weight"},
                               {"layers.#.moe.experts.#.w_gate", "model.layers.#.block_sparse_moe.input_linear.weight", Fused::experts},
                               {"layers.#.moe.experts.#.w_up", "model.layers.#.block_sparse_moe.input_linear.weight", Fused::experts},
                               {"layers.#.moe.experts.#.w_down", "model.layers.#.block_sparse_moe.output_linear.weight", Fused::experts},
                               {"layers.#.moe.shared.w_gate", "model.layers.#.shared_mlp.input_linear.weight", Fused::rows},
                               {"layers.#.moe.shared.w_up", "model.layers.#.shared_mlp.input_linear.weight", Fused::rows},
                               {"layers.#.moe.shared.w_down", "model.layers.#.shared_mlp.output_linear.weight"},
                               {"layers.#.mlp.w_gate", "model.layers.#.shared_mlp.input_linear.weight", Fused::rows},
                               {"layers.#.mlp.w_up", "model.layers.#.shared_mlp.input_linear.weight", Fused::rows},
                               {"layers.#.mlp.w_down", "model.layers.#.shared_mlp.output_linear.weight"}});
constexpr auto shared_expert_names = std::span(hybrid_names).first<7>();
constexpr auto granitemoe_names = shared_expert_names.first<4>();

}  // namespace

Family granite_family() {
  return {.type = "granite",
          .architecture = "GraniteForCausalLM",
          .turn = 3,  // a Llama or a Mistral where each multiplier is 1
          .standard = {.norm_eps = 1e-6},
          .says = multipliers,
          .read_model = read_multipliers,
          .put_model = put_multipliers,
          .keys = granite_keys};
}

Family granitemoe_family() {
  return {.type = "granitemoe",
          .architecture = "GraniteMoeForCausalLM",
          .turn = 3,
          .standard = {.norm_eps = 1e-6, .experts = 8, .experts_per_token = 2},
          .says = multipliers,
          .read_model = read_multipliers,
          .put_model = put_multipliers,
          .keys = granitemoe_keys,
          .names = granitemoe_names};
}

Family granitemoeshared_family() {
  Family family = granitemoe_family();
  family.type = "granitemoeshared", family.architecture = "GraniteMoeSharedForCausalLM", family.turn = 4, family.says = granite_says;
  family.standard.shared_gate = false;
  family.read_model = read_granite_shared;
  family.keys = shared_expert_keys, family.names = shared_expert_names;
  return family;
}

Family granitemoehybrid_family() {
  Family family = granitemoeshared_family();
  family.type = "granitemoehybrid", family.architecture = "GraniteMoeHybridForCausalLM";
  family.may_lack_experts = true;
  family.standard.shared_ff_width = 1024;
  family.window.attention = "attention";
  family.read_model = read_hybrid, family.read_layers = read_granite_positions, family.put_model = put_hybrid;
  family.names = hybrid_names;
  return family;
}

}  // namespace tessera
