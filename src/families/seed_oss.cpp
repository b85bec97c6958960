// Seed-OSS: a Qwen2 by other keys. Read alone: it is exported as the Qwen2 that it is.
#include <array>

#include "families/layers.hpp"

namespace tessera {
namespace {

void read_seed_oss(ConfigReader& config, ModelKeys&) { note_dropout(config, {"attention_dropout", "residual_dropout"}, 0.1); }

constexpr auto seed_oss_keys = std::to_array<FamilyKey>({{.name = "attention_bias", .field = &ModelKeys::qkv_bias},
                                                         {.name = "attention_out_bias", .field = &ModelKeys::attention_out_bias},
                                                         {.name = "mlp_bias", .fixed = "false"},
                                                         {.name = "attention_dropout", .fixed = "0.0"},
                                                         {.name = "residual_dropout", .fixed = "0.0"}});

}  // namespace

Family seed_oss_family() {
  return {.type = "seed_oss",
          .architecture = "SeedOssForCausalLM",
          .turn = Family::never,
          .standard = {.kv_heads = 8, .head_dim = 128, .norm_eps = 1e-6, .qkv_bias = true},
          .read_model = read_seed_oss,
          .dropout = true,
          .keys = seed_oss_keys};
}

}  // namespace tessera
