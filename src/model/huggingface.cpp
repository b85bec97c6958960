#include "model/huggingface.hpp"

#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "base/log.hpp"

namespace tessera {

std::string huggingface_config(const Deck& deck, DType dtype) {
  const ModelKeys& m = deck.model;
  if (m.qk_norm && m.qkv_bias)
    fail(ExitCode::usage,
         "model.qk_norm and model.qkv_bias together have no class in transformers, so there is nothing to export to; use --format hdf5");
  const bool llama = !m.qk_norm && !m.qkv_bias;
  if (llama && m.width % m.heads != 0)
    warning(
        "transformers refuses a Llama configuration whose hidden_size ({}) is not a multiple of num_attention_heads ({}); the weights are "
        "exported all the same",
        m.width, m.heads);
  nlohmann::ordered_json c;
  c["architectures"] = {m.qk_norm ? "Qwen3ForCausalLM" : m.qkv_bias ? "Qwen2ForCausalLM" : "LlamaForCausalLM"};
  c["model_type"] = m.qk_norm ? "qwen3" : m.qkv_bias ? "qwen2" : "llama";
  c["vocab_size"] = m.vocab;
  c["hidden_size"] = m.width;
  c["intermediate_size"] = m.ff_width;
  c["num_hidden_layers"] = m.layers;
  c["num_attention_heads"] = m.heads;
  c["num_key_value_heads"] = m.kv_heads;
  c["head_dim"] = m.head_dim;
  c["hidden_act"] = "silu";
  c["rms_norm_eps"] = m.norm_eps;
  c["tie_word_embeddings"] = m.tied;
  c["max_position_embeddings"] = deck.batch.sequence_length;
  c["initializer_range"] = m.init_std;
  c["attention_bias"] = false;
  if (llama) c["mlp_bias"] = false;
  c["attention_dropout"] = 0.0;
  // The keys of transformers 4, which version 5 reads as well.
  c["rope_theta"] = m.rope_theta;
  if (m.rope_scaling == "llama3")
    c["rope_scaling"] = {{"rope_type", "llama3"},
                         {"factor", m.rope_factor},
                         {"low_freq_factor", m.rope_low_freq_factor},
                         {"high_freq_factor", m.rope_high_freq_factor},
                         {"original_max_position_embeddings", m.rope_original_context}};
  else
    c["rope_scaling"] = nullptr;
  c["bos_token_id"] = nullptr;
  c["eos_token_id"] = nullptr;
  c["use_cache"] = true;
  c["torch_dtype"] = dtype == DType::bf16 ? "bfloat16" : "float32";
  return c.dump(2) + "\n";
}

}  // namespace tessera
