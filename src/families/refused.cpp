#include "families/refused.hpp"

#include <algorithm>

namespace tessera {
namespace {

// What several of them have.
constexpr std::string_view mla = "multi-head latent attention (q_lora_rank, kv_lora_rank, qk_rope_head_dim)";
constexpr std::string_view groups = "routers by groups of experts with softmax scores (n_group, topk_group)";
constexpr std::string_view sparse = "attention to chosen tokens (index_topk)";
constexpr std::string_view delta = "gated DeltaNet, a linear attention (linear_num_key_heads, linear_conv_kernel_dim)";
constexpr std::string_view partial = "the rotation of a part of a head's features (partial_rotary_factor)";
constexpr std::string_view mamba = "Mamba's state-space layers";

}  // namespace

const std::vector<RefusedFamily>& refused_families() {
  static const std::vector<RefusedFamily> rows = {
      {{"deepseek_v3", "kimi_k2", "glm4_moe_lite"}, {mla}},
      {{"deepseek_v2", "mistral4"}, {mla, groups}},
      {{"deepseek_v32", "glm_moe_dsa", "mistral_large4"}, {mla, sparse}},
      {{"deepseek_v4", "glm5_next"}, {sparse, "several streams between layers (hc_mult)"}},
      {{"kimi_linear"}, {"a linear attention (linear_num_heads, linear_conv_kernel_dim)", mla}},
      {{"minicpm3"}, {mla}},
      {{"longcat_flash"}, {mla, "experts that compute nothing (zero_expert_num)"}},
      {{"qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text"}, {delta, "a gate on the attention's output", partial}},
      {{"qwen3_5", "qwen3_5_text"}, {delta, "a gate on the attention's output", partial}},
      {{"qwen4_exp"}, {delta, "several streams between layers (hc_count)", "embeddings of several tokens (ngram_size)"}},
      {{"olmo_hybrid"}, {delta}},
      {{"gemma3n", "gemma3n_text"}, {"embeddings for each layer (hidden_size_per_layer_input)"}},
      {{"gemma4", "gemma4_text", "gemma4_unified"},
       {"embeddings for each layer (hidden_size_per_layer_input)",
        "keys and values that layers share (num_kv_shared_layers, attention_k_eq_v)", "heads of another width on some layers"}},
      {{"olmo"}, {"norms without a weight"}},
      {{"mellum"}, {"separate keys (layer_rope_theta)"}},
      {{"ministral3"}, {"a scale of queries that grows with the position (llama_4_scaling_beta)"}},
      {{"llama4", "llama4_text"},
       {"layers without a rotation (no_rope_layers)", "attention within chunks (attention_chunk_size)",
        "a router that scales what experts are given"}},
      {{"cohere2_moe"}, {"attention beside experts", "attention parallel to experts"}},
      {{"mamba", "mamba2", "jamba", "bamba", "falcon_h1", "nemotron_h"}, {mamba}},
      {{"lfm2", "lfm2_moe"}, {"short convolutions instead of attention (layer_types \"conv\")"}},
  };
  return rows;
}

const RefusedFamily* refused_family(std::string_view type) {
  const auto found = std::ranges::find_if(refused_families(),
                                          [&](const RefusedFamily& row) { return std::ranges::find(row.types, type) != row.types.end(); });
  return found == refused_families().end() ? nullptr : &*found;
}

}  // namespace tessera
