#include "model/huggingface.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/byte_tokenizer.hpp"

namespace tessera {
namespace {

/// A class of transformers and what its configuration calls it.
struct ModelClass {
  const char *architecture, *type;
};

ModelClass class_of(const ModelKeys& m) {
  if (m.qk_norm) return {"Qwen3ForCausalLM", "qwen3"};
  if (m.qkv_bias) return {"Qwen2ForCausalLM", "qwen2"};
  // A Llama's configuration is refused where the width is no multiple of the heads, even with a head_dim. A Mistral is the same model, and
  // takes it.
  if (m.width % m.heads != 0) return {"MistralForCausalLM", "mistral"};
  return {"LlamaForCausalLM", "llama"};
}

/// Qwen3 has one switch for the biases of all four projections: with ours on q, k and v comes one of the output, which adds nothing.
bool has_output_bias(const ModelKeys& m) { return m.qk_norm && m.qkv_bias; }

using Json = nlohmann::ordered_json;

/// Only the byte tokenizer is known here: its separator begins a document and ends it.
void put_token_ids(Json& c, const ModelKeys& m) {
  const Json separator = m.vocab == byte_tokenizer_vocab ? Json(byte_separator) : Json();
  c["bos_token_id"] = separator;
  c["eos_token_id"] = separator;
}

}  // namespace

std::vector<ExportTensor> huggingface_tensors(const Deck& deck, const std::vector<Parameter>& table) {
  std::vector<ExportTensor> tensors;
  for (const Parameter& p : table) {
    tensors.push_back({p.export_name, p.shape, p.name});
    if (has_output_bias(deck.model) && p.name.ends_with(".attention.wo"))
      tensors.push_back({fmt::format("model.layers.{}.self_attn.o_proj.bias", p.layer), {deck.model.width}, ""});
  }
  return tensors;
}

std::string huggingface_config(const Deck& deck, DType dtype) {
  const ModelKeys& m = deck.model;
  const ModelClass kind = class_of(m);
  const std::string type = kind.type;
  Json c;
  c["architectures"] = {kind.architecture};
  c["model_type"] = type;
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
  c["attention_bias"] = has_output_bias(m);
  if (type == "llama") c["mlp_bias"] = false;
  if (type == "mistral") c["sliding_window"] = nullptr;  // its default is a window of 4096
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
  put_token_ids(c, m);
  c["use_cache"] = true;
  c["torch_dtype"] = dtype == DType::bf16 ? "bfloat16" : "float32";
  return c.dump(2) + "\n";
}

std::string huggingface_generation_config(const Deck& deck) {
  Json c;
  put_token_ids(c, deck.model);
  c["pad_token_id"] = c["eos_token_id"];
  return c.dump(2) + "\n";
}

}  // namespace tessera
