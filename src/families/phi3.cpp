// Phi-3 and Phi-4: a Llama by other keys, with fused tensors, and with a window on all layers or on none. Read alone: it is exported as the
// Llama or the Mistral that it is.
#include <array>

#include "families/layers.hpp"

namespace tessera {
namespace {

/// original_max_position_embeddings means something to longrope alone, which its class takes "su" and "yarn" for, and besides which it
/// computes none.
void require_plain_rotation(ConfigReader& config, ModelKeys& m) {
  config.find("original_max_position_embeddings");
  if (m.rope_scaling == RopeMode::none) return;
  for (const char* key : {"rope_scaling", "rope_parameters"})
    if (config.find(key))
      config.fault(key, "the class of this model_type has rotations of type longrope alone, which are not in this version");
}

constexpr auto phi3_names = std::to_array<TensorName>({{"layers.#.attention.wq", "model.layers.#.self_attn.qkv_proj.weight", Fused::rows},
                                                       {"layers.#.attention.wk", "model.layers.#.self_attn.qkv_proj.weight", Fused::rows},
                                                       {"layers.#.attention.wv", "model.layers.#.self_attn.qkv_proj.weight", Fused::rows},
                                                       {"layers.#.mlp.w_gate", "model.layers.#.mlp.gate_up_proj.weight", Fused::rows},
                                                       {"layers.#.mlp.w_up", "model.layers.#.mlp.gate_up_proj.weight", Fused::rows}});

}  // namespace

Family phi3_family() {
  return {.type = "phi3",
          .architecture = "Phi3ForCausalLM",
          .standard = {.norm_eps = 1e-5},
          .window = {.key = WindowRule::Key::always},
          .read_model = require_plain_rotation,
          .own_code = true,
          .names = phi3_names};
}

}  // namespace tessera
