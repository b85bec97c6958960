// Phi-3 and Phi-4: a Llama by other keys, with fused tensors, and with a window on all layers or on none. One that is rotated as a Llama is
// read alone: it is exported as the Llama or the Mistral that it is.
#include <array>

#include "base/json.hpp"
#include "families/layers.hpp"

namespace tessera {
namespace {

/// original_max_position_embeddings means something to longrope alone. Some files have keys of the code that they came with.
void read_phi3(ConfigReader& config, ModelKeys&) {
  config.find("original_max_position_embeddings");
  if (config.truth("lm_head_bias", false))
    config.fault("lm_head_bias", "a bias of the head is not computed by the class of this model_type");
  for (const char* key : {"full_attn_mod", "interpolate_factor"})
    if (config.real(key, 1) != 1) config.fault(key, "is not 1, but the class of transformers does not know it");
}

/// Its class has them beside the rotation, of which it takes three keys. The context is what cosines and sines are scaled by. It knows no
/// head_dim.
void put_phi3(Json& config, const ModelKeys& m) {
  config.erase("head_dim");
  config["original_max_position_embeddings"] =
      m.rope_scaling == RopeMode::longrope ? Json(m.rope_original_context) : config["max_position_embeddings"];
}

/// One that is rotated as a Llama is exported as the Llama or the Mistral that it is.
bool is_rotated_as_phi3(const ModelKeys& m) {
  return (m.rotary_fraction != 1 || m.rope_scaling == RopeMode::longrope) && m.heads * m.head_dim == m.width;
}

constexpr auto phi3_keys = std::to_array<FamilyKey>({{.name = "partial_rotary_factor", .field = &ModelKeys::rotary_fraction},
                                                     {.name = "resid_pdrop", .fixed = "0.0"},
                                                     {.name = "embd_pdrop", .fixed = "0.0"}});

constexpr auto phi3_names = std::to_array<TensorName>({{"layers.#.attention.wq", "model.layers.#.self_attn.qkv_proj.weight", Fused::rows},
                                                       {"layers.#.attention.wk", "model.layers.#.self_attn.qkv_proj.weight", Fused::rows},
                                                       {"layers.#.attention.wv", "model.layers.#.self_attn.qkv_proj.weight", Fused::rows},
                                                       {"layers.#.mlp.w_gate", "model.layers.#.mlp.gate_up_proj.weight", Fused::rows},
                                                       {"layers.#.mlp.w_up", "model.layers.#.mlp.gate_up_proj.weight", Fused::rows}});

}  // namespace

Family phi3_family() {
  return {.type = "phi3",
          .architecture = "Phi3ForCausalLM",
          .turn = -1,
          .standard = {.norm_eps = 1e-5},
          .takes = is_rotated_as_phi3,
          .window = {.key = WindowRule::Key::always},
          .rotation = {.partial = true, .longrope_alone = true},
          .read_model = read_phi3,
          .put_model = put_phi3,
          .own_code = true,
          .keys = phi3_keys,
          .names = phi3_names};
}

}  // namespace tessera
