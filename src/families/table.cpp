#include <algorithm>
#include <array>

#include "base/check.hpp"
#include "families/layers.hpp"
#include "families/names.hpp"

namespace tessera {

// A row a family, which its file defines, in the order of messages.
#define TESSERA_FAMILIES(row)                                                                                                            \
  row(llama) row(mistral) row(ministral) row(cwm) row(smollm3) row(gemma) row(gemma2) row(gemma3) row(olmo2) row(olmo3) row(exaone4)     \
      row(glm) row(glm4) row(glm4_moe) row(dots1) row(granite) row(seed_oss) row(phi3) row(qwen2) row(qwen3) row(mixtral) row(qwen2_moe) \
          row(qwen3_moe) row(olmoe) row(granitemoe) row(granitemoeshared) row(granitemoehybrid) row(minimax_m2) row(gpt_oss)             \
              row(starcoder2) row(apertus) row(gpt2) row(cohere) row(cohere2)

#define TESSERA_DECLARE(name) Family name##_family();
TESSERA_FAMILIES(TESSERA_DECLARE)
#undef TESSERA_DECLARE

const std::vector<Family>& families() {
#define TESSERA_ROW(name) name##_family(),
  static const std::vector<Family> rows = {TESSERA_FAMILIES(TESSERA_ROW)};
#undef TESSERA_ROW
  return rows;
}

std::span<const FamilyKey> shared_keys() {
  static constexpr auto keys = std::to_array<FamilyKey>({{.name = "vocab_size", .field = &ModelKeys::vocab, .required = true},
                                                         {.name = "hidden_size", .field = &ModelKeys::width, .required = true},
                                                         {.name = "intermediate_size", .field = &ModelKeys::ff_width, .required = true},
                                                         {.name = "num_hidden_layers", .field = &ModelKeys::layers, .required = true},
                                                         {.name = "num_attention_heads", .field = &ModelKeys::heads, .required = true},
                                                         {.name = "num_key_value_heads", .field = &ModelKeys::kv_heads},
                                                         {.name = "head_dim", .field = &ModelKeys::head_dim},
                                                         {.name = "hidden_act", .field = &ModelKeys::activation},
                                                         {.name = "rms_norm_eps", .field = &ModelKeys::norm_eps},
                                                         {.name = "tie_word_embeddings", .field = &ModelKeys::tied}});
  return keys;
}

std::span<const FamilyKey> Family::first_keys() const { return own_keys.empty() ? shared_keys() : own_keys; }

const Family* family_named(std::string_view type) {
  const auto found = std::ranges::find(families(), type, &Family::type);
  return found == families().end() ? nullptr : &*found;
}

const Family* family_of(const ModelKeys& model) {
  const auto found = std::ranges::find_if(families(), [&](const Family& family) { return family.has && family.has(model); });
  return found == families().end() ? nullptr : &*found;
}

const Family& require_family(const ModelKeys& m) {
  const Family* family = family_of(m);
  if (m.router_balance == RouterBalance::bias && (!family || TensorNames(family).of("layers.0.moe.router_bias").empty()))
    fail(
        ExitCode::usage,
        "no class of transformers that has this model's experts chooses them with a bias (model.router_balance = \"bias\"), and without it "
        "tokens would go to others: a GLM-4.5 or dots.llm1 has model.router_scores = \"sigmoid\", and model.shared_ff_width, a multiple of "
        "model.expert_ff_width, with model.shared_gate = false; a MiniMax-M2 no such width, and model.wide_qk_norm; --format hdf5 writes "
        "any "
        "model");
  if (family) return *family;
  if (m.router_scores == RouterScores::sigmoid || !m.shared_gate || m.dense_layers > 0 || m.router_scale != 1)
    fail(ExitCode::usage,
         "no class of transformers that is known here has this model's experts: model.router_scores = \"sigmoid\", model.dense_layers and "
         "model.router_scale are of a GLM-4.5 or dots.llm1, which has model.router_balance = \"bias\" and model.shared_gate = false too, "
         "and the latter "
         "with scores by a softmax is of a Granite; --format hdf5 writes any model");
  if (const LayerTraits traits = traits_of(m); m.experts == 0 || !traits.one_rotation || !traits.all_rotated || !traits.no_window)
    fail(ExitCode::usage,
         "no class of transformers that is known here has layers of this model's kinds (model.window {}, model.pattern \"{}\", {} kinds): "
         "Mistral and Mixtral have a window on all layers or on none, Qwen2, Qwen3, CWM and Gemma one of one size on some, SmolLM3 layers "
         "without positions; --format hdf5 writes any model",
         m.window, m.pattern, m.kinds.size());
  fail(ExitCode::usage,
       "no class of transformers has experts with model.qk_norm = {}, model.qkv_bias = {}, model.shared_ff_width = {} and "
       "model.normalize_top_k = {}: a Mixtral is without all but the last, a Qwen2-MoE has the shared expert and no qk_norm, a Qwen3-MoE "
       "qk_norm and no shared expert; --format hdf5 writes any model",
       m.qk_norm, m.qkv_bias, m.shared_ff_width, m.normalize_top_k);
}

}  // namespace tessera
