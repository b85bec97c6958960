// Apertus: a Qwen3 whose feed-forward blocks have no gate, with xIELU or another activation.
#include <array>

#include "families/layers.hpp"

namespace tessera {
namespace {

constexpr auto apertus_names = std::to_array<TensorName>({{"layers.#.attention.norm", "model.layers.#.attention_layernorm.weight"},
                                                          {"layers.#.mlp.norm", "model.layers.#.feedforward_layernorm.weight"},
                                                          {"layers.#.mlp.alpha_p", "model.layers.#.mlp.act_fn.alpha_p"},
                                                          {"layers.#.mlp.alpha_n", "model.layers.#.mlp.act_fn.alpha_n"}});

/// Of xIELU: its slope at zero, and where its negative side is cut.
constexpr auto apertus_constants = std::to_array<ConstantTensor>(
    {{"layers.#.mlp.alpha_n", "model.layers.#.mlp.act_fn.beta", 0.5}, {"layers.#.mlp.alpha_n", "model.layers.#.mlp.act_fn.eps", -1e-6}});

}  // namespace

Family apertus_family() {
  return {.type = "apertus",
          .architecture = "ApertusForCausalLM",
          .standard = {.norm_eps = 1e-5,
                       .qk_norm = true,
                       .activation = Activation::xielu,
                       .gated = false,
                       .rope_theta = 12e6,
                       .rope_scaling = RopeMode::llama3,
                       .rope_factor = 8,
                       .rope_original_context = 8192},
          .output_bias = true,
          .names = apertus_names,
          .constants = apertus_constants};
}

}  // namespace tessera
