#include "model/table/huggingface.hpp"

#include <fmt/format.h>

#include "base/json.hpp"

#include "base/byte_tokenizer.hpp"
#include "base/check.hpp"

namespace tessera {
namespace {

/// A class of transformers and what its configuration calls it.
struct ModelClass {
  const char *architecture, *type;
};

/// Of a model with experts. A Mixtral has neither an expert of all tokens nor norms or biases in its attention, and weights that are
/// normalized; a Qwen2-MoE has that expert, a Qwen3-MoE norms.
ModelClass class_with_experts(const ModelKeys& m) {
  if (is_mixtral(m)) return {"MixtralForCausalLM", "mixtral"};
  if (m.shared_ff_width > 0 && !m.qk_norm) return {"Qwen2MoeForCausalLM", "qwen2_moe"};
  if (m.shared_ff_width == 0 && m.qk_norm) return {"Qwen3MoeForCausalLM", "qwen3_moe"};
  fail(ExitCode::usage,
       "no class of transformers has experts with model.qk_norm = {}, model.qkv_bias = {}, model.shared_ff_width = {} and "
       "model.normalize_top_k = {}: a Mixtral is without all but the last, a Qwen2-MoE has the shared expert and no qk_norm, a Qwen3-MoE "
       "qk_norm and no shared expert; --format hdf5 writes any model",
       m.qk_norm, m.qkv_bias, m.shared_ff_width, m.normalize_top_k);
}

ModelClass class_of(const ModelKeys& m) {
  if (m.router_balance == RouterBalance::bias)
    fail(
        ExitCode::usage,
        "no class of transformers that has this model's experts chooses them with a bias (model.router_balance = \"bias\"), and without it "
        "tokens would go to others; --format hdf5 writes any model");
  if (m.experts > 0) return class_with_experts(m);
  if (m.qk_norm) return {"Qwen3ForCausalLM", "qwen3"};
  if (m.qkv_bias) return {"Qwen2ForCausalLM", "qwen2"};
  // A Llama's configuration is refused where the width is no multiple of the heads, even with a head_dim. A Mistral is the same model, and
  // takes it.
  if (m.width % m.heads != 0) return {"MistralForCausalLM", "mistral"};
  return {"LlamaForCausalLM", "llama"};
}

/// Qwen3 has one switch for the biases of all four projections: with ours on q, k and v comes one of the output, which adds nothing.
bool has_output_bias(const ModelKeys& m) { return m.qk_norm && m.qkv_bias; }

void put_experts(Json& c, const ModelKeys& m, const std::string& type) {
  if (m.experts == 0) return;
  c["num_experts_per_tok"] = m.experts_per_token;
  c["output_router_logits"] = false;
  if (type == "mixtral") {
    c["num_local_experts"] = m.experts;
    c["intermediate_size"] = m.expert_ff_width;
    c["router_jitter_noise"] = 0.0;
    return;
  }
  c["num_experts"] = m.experts;
  c["moe_intermediate_size"] = m.expert_ff_width;
  c["norm_topk_prob"] = m.normalize_top_k;
  c["decoder_sparse_step"] = 1;
  c["mlp_only_layers"] = Json::array();
  if (type == "qwen2_moe") {
    c["shared_expert_intermediate_size"] = m.shared_ff_width;
    c["qkv_bias"] = m.qkv_bias;
  }
}

std::string torch_name(DType dtype) {
  TESSERA_REQUIRE(is_float(dtype), "a model of {} for transformers", name_of(dtype));
  return std::string(row_of(dtype).torch);
}

/// The scaling of the rotary frequencies, in the form of transformers 4.
Json rotation(const ModelKeys& m) {
  Json c{{"rope_type", word_of(m.rope_scaling)}, {"factor", m.rope_factor}};
  switch (m.rope_scaling) {
    case RopeMode::none:
      return nullptr;
    case RopeMode::llama3:
      c["low_freq_factor"] = m.rope_low_freq_factor, c["high_freq_factor"] = m.rope_high_freq_factor;
      c["original_max_position_embeddings"] = m.rope_original_context;
      break;
    case RopeMode::yarn:
      c["beta_fast"] = m.rope_beta_fast, c["beta_slow"] = m.rope_beta_slow;
      if (m.rope_attention_factor > 0) c["attention_factor"] = m.rope_attention_factor;
      c["original_max_position_embeddings"] = m.rope_original_context;
      break;
    case RopeMode::linear:
    case RopeMode::dynamic:  // goes by max_position_embeddings
      break;
  }
  return c;
}

/// Of tokenizers the byte tokenizer alone is known here: its separator begins a document and ends it.
void put_token_ids(Json& c, const ModelKeys& m, const std::optional<TokenIds>& ids) {
  if (ids) {
    for (const auto& [key, value] : *ids) c[key] = Json::parse(value);
    return;
  }
  const Json separator = m.vocab == byte_tokenizer_vocab ? Json(byte_separator) : Json();
  c["bos_token_id"] = separator;
  c["eos_token_id"] = separator;
}

}  // namespace

std::vector<ExportTensor> huggingface_tensors(const Deck& deck, const std::vector<Parameter>& table) {
  class_of(deck.model);  // a model that no class has is refused
  std::vector<ExportTensor> tensors;
  for (const Parameter& p : table) {
    if (p.adapter) continue;
    tensors.push_back({p.export_name, p.shape, p.name});
    if (has_output_bias(deck.model) && p.name.ends_with(".attention.wo"))
      tensors.push_back({fmt::format("model.layers.{}.self_attn.o_proj.bias", p.layer), {deck.model.width}, ""});
  }
  return tensors;
}

std::string huggingface_config(const Deck& deck, DType dtype, const std::optional<TokenIds>& ids) {
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
  c["max_position_embeddings"] = m.rope_scaling == RopeMode::dynamic ? m.rope_original_context
                                 : m.max_context > 0                 ? m.max_context
                                                                     : deck.batch.sequence_length;
  c["initializer_range"] = m.init_std;
  c["attention_bias"] = has_output_bias(m);
  if (type == "llama") c["mlp_bias"] = false;
  put_experts(c, m, type);
  if (type == "mistral" || type == "mixtral") c["sliding_window"] = nullptr;  // its default is a window of 4096
  c["attention_dropout"] = 0.0;
  // The keys of transformers 4, which version 5 reads as well.
  c["rope_theta"] = m.rope_theta;
  c["rope_scaling"] = rotation(m);
  put_token_ids(c, m, ids);
  c["use_cache"] = true;
  c["torch_dtype"] = torch_name(dtype);
  return c.dump(2) + "\n";
}

std::string huggingface_generation_config(const Deck& deck, const std::optional<TokenIds>& ids) {
  Json c = Json::object();
  put_token_ids(c, deck.model, ids);
  if (!ids) c["pad_token_id"] = c["eos_token_id"];
  return c.dump(2) + "\n";
}

}  // namespace tessera
