// Llama 2 and 3, and Mistral, which is the same model but for its keys.
#include <array>

#include "families/family.hpp"

namespace tessera {
namespace {

bool is_plain(const ModelKeys& m) { return m.experts == 0 && !m.qk_norm && !m.qkv_bias; }

// A Llama's configuration is refused where the width is no multiple of the heads, even with a head_dim; a Mistral's is not.
bool is_mistral(const ModelKeys& m) { return is_plain(m) && m.heads > 0 && m.width % m.heads != 0; }
bool is_llama(const ModelKeys& m) { return is_plain(m) && !is_mistral(m); }

constexpr auto llama_keys = std::to_array<FamilyKey>({{.name = "mlp_bias", .fixed = "false"}});
constexpr auto mistral_keys = std::to_array<FamilyKey>({{.name = "sliding_window", .fixed = "null"}});  // its default is a window of 4096

}  // namespace

Family llama_family() {
  return {.type = "llama", .architecture = "LlamaForCausalLM", .has = is_llama, .standard = {.norm_eps = 1e-6}, .keys = llama_keys};
}

Family mistral_family() {
  return {.type = "mistral",
          .architecture = "MistralForCausalLM",
          .has = is_mistral,
          .standard = {.kv_heads = 8, .norm_eps = 1e-6},
          .window = WindowKey::always,
          .standard_window = 4096,
          .keys = mistral_keys};
}

}  // namespace tessera
