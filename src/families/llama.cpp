// Llama 2 and 3; Mistral, which is the same model but for its keys, with a window on all layers or on none; and with windows on some
// Ministral and CWM.
#include <array>

#include "families/layers.hpp"

namespace tessera {
namespace {

// A Llama's configuration is refused where the width is no multiple of the heads, even with a head_dim; a Mistral's is not.
bool has_whole_heads(const ModelKeys& m) { return m.heads == 0 || m.width % m.heads == 0; }

constexpr auto llama_keys = std::to_array<FamilyKey>({{.name = "mlp_bias", .field = &ModelKeys::mlp_bias}});
constexpr auto cwm_keys = std::to_array<FamilyKey>({{.name = "mlp_bias", .fixed = "false"}});

}  // namespace

Family llama_family() {
  return {.type = "llama",
          .architecture = "LlamaForCausalLM",
          .standard = {.norm_eps = 1e-6},
          .takes = has_whole_heads,
          .output_bias = true,
          .keys = llama_keys};
}

Family mistral_family() {
  return {.type = "mistral",
          .architecture = "MistralForCausalLM",
          .turn = 1,
          .standard = {.kv_heads = 8, .norm_eps = 1e-6},
          .window = {.key = WindowRule::Key::always, .standard = 4096}};
}

// Read alone: it is exported as the Mistral or the CWM that it is.
Family ministral_family() {
  return {.type = "ministral",
          .architecture = "MinistralForCausalLM",
          .turn = Family::never,
          .standard = {.kv_heads = 8, .norm_eps = 1e-6},
          .window = {.key = WindowRule::Key::always, .standard = 4096, .lists = true}};
}

Family cwm_family() {
  return {.type = "cwm",
          .architecture = "CwmForCausalLM",
          .turn = 2,
          .standard = {.kv_heads = 8,
                       .head_dim = 128,
                       .norm_eps = 1e-5,
                       .rope_theta = 1e6,
                       .rope_scaling = RopeMode::llama3,
                       .rope_factor = 16,
                       .rope_original_context = 8192},
          .window = {.key = WindowRule::Key::always,
                     .standard = 8192,
                     .lists = true,
                     .slides = [](std::int64_t i, std::int64_t) { return i % 4 != 0; }},
          .keys = cwm_keys};
}

}  // namespace tessera
