#include <array>

#include "families/layers.hpp"

namespace tessera {
namespace {

constexpr auto mixtral_keys = std::to_array<FamilyKey>({{.name = "num_experts_per_tok", .field = &ModelKeys::experts_per_token},
                                                        {.name = "output_router_logits", .fixed = "false"},
                                                        {.name = "num_local_experts", .field = &ModelKeys::experts},
                                                        {.name = "intermediate_size", .field = &ModelKeys::expert_ff_width},
                                                        {.name = "router_jitter_noise", .fixed = "0.0"}});

constexpr auto mixtral_names =
    std::to_array<TensorName>({{"layers.#.moe.router", "model.layers.#.block_sparse_moe.gate.weight"},
                               {"layers.#.moe.experts.#.w_gate", "model.layers.#.block_sparse_moe.experts.#.w1.weight"},
                               {"layers.#.moe.experts.#.w_up", "model.layers.#.block_sparse_moe.experts.#.w3.weight"},
                               {"layers.#.moe.experts.#.w_down", "model.layers.#.block_sparse_moe.experts.#.w2.weight"}});

}  // namespace

Family mixtral_family() {
  return {.type = "mixtral",
          .architecture = "MixtralForCausalLM",
          .standard = {.kv_heads = 8, .norm_eps = 1e-5, .rope_theta = 1e6, .experts = 8, .experts_per_token = 2},
          .window = {.key = WindowRule::Key::always},
          .keys = mixtral_keys,
          .names = mixtral_names};
}

}  // namespace tessera
