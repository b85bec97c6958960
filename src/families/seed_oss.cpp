// Seed-OSS: a Qwen2 by other keys. Read alone: it is exported as the Qwen2 that it is.
#include <array>

#include "families/layers.hpp"

namespace tessera {
namespace {

/// Its files, and its class where they do not say it, ask for dropout in training.
void note_dropout(ConfigReader& config, ModelKeys&) {
  for (const char* key : {"attention_dropout", "residual_dropout"})
    if (config.real(key, 0.1) != 0) config.unused(std::string(key) + " (there is no dropout in this version)");
}

constexpr auto seed_oss_keys = std::to_array<FamilyKey>({{.name = "attention_bias", .field = &ModelKeys::qkv_bias},
                                                         {.name = "attention_out_bias", .field = &ModelKeys::attention_out_bias},
                                                         {.name = "mlp_bias", .fixed = "false"},
                                                         {.name = "attention_dropout", .fixed = "0.0"},
                                                         {.name = "residual_dropout", .fixed = "0.0"}});

}  // namespace

Family seed_oss_family() {
  return {.type = "seed_oss",
          .architecture = "SeedOssForCausalLM",
          .standard = {.kv_heads = 8, .head_dim = 128, .norm_eps = 1e-6, .qkv_bias = true},
          .read_model = note_dropout,
          .dropout = true,
          .keys = seed_oss_keys};
}

}  // namespace tessera
