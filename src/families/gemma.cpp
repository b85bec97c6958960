// Gemma: norms that scale by 1 + their weights; an embedding times the root of its width; GeGLU. From Gemma 2 on norms before and after
// each block, and every other layer (Gemma 2), or five of six (Gemma 3), with a window. Gemma 2 has soft caps, Gemma 3 norms of queries and
// keys, and for layers with a window a rotation of their own.
#include <array>
#include <cmath>

#include "families/activation.hpp"
#include "families/layers.hpp"

namespace tessera {
namespace {

/// transformers refuses a Gemma whose width is no multiple of its heads.
bool has_heads_of_gemma(const ModelKeys& m) { return m.heads > 0 && m.width % m.heads == 0; }

constexpr auto gemma_says =
    std::to_array<TraitField>({&ModelKeys::attention_scale, &ModelKeys::attention_softcap, &ModelKeys::logit_softcap});

/// The class takes hidden_activation alone, and files have both.
void read_activation(ConfigReader& config, ModelKeys& m) {
  const JsonNode *taken = config.find("hidden_activation"), *other = config.find("hidden_act");
  m.activation = taken ? config.activation(*taken, m) : Activation::gelu_tanh;
  if (other && config.activation(*other, m) != m.activation)
    config.fault(*other, "differs from hidden_activation, the only key that the class of this model_type reads; leave it out");
}

void read_gemma(ConfigReader&, ModelKeys& m) {
  if (m.activation == Activation::gelu) m.activation = Activation::gelu_tanh;
}

void read_query_scale(ConfigReader& config, ModelKeys& m) {
  const double scalar = config.real("query_pre_attn_scalar", 256);
  if (!(scalar > 0)) return config.fault("query_pre_attn_scalar", "is not a number above 0");
  m.attention_scale = scalar == static_cast<double>(m.head_dim) ? 0 : 1 / std::sqrt(scalar);
}

void read_caps(ConfigReader& config, ModelKeys& m, double attention, double logits) {
  const auto cap = [&](const char* key, double standard) { return config.is_null(key) ? 0 : config.real(key, standard); };
  m.attention_softcap = cap("attn_logit_softcapping", attention), m.logit_softcap = cap("final_logit_softcapping", logits);
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"})
    if (const JsonNode* node = config.find(key); node && !(config.number(*node) > 0)) config.fault(*node, "is not a number above 0");
  if (config.truth("use_bidirectional_attention", false))
    config.fault("use_bidirectional_attention", "attention to later tokens is not in this version");
}

void read_gemma2(ConfigReader& config, ModelKeys& m) {
  read_activation(config, m), read_query_scale(config, m), read_caps(config, m, 50, 30);
}
void read_gemma3(ConfigReader& config, ModelKeys& m) {
  read_activation(config, m), read_query_scale(config, m), read_caps(config, m, 0, 0);
  if (m.attention_softcap == 0) return;
  config.fault("attn_logit_softcapping", "has no effect in the class of this model_type; leave it out");
  m.attention_softcap = 0;
}

void put_gemma(Json& c, const ModelKeys& m) {
  c["hidden_activation"] = word_of_theirs(m.activation);
  // transformers takes whole numbers alone.
  const double scalar = m.attention_scale == 0 ? static_cast<double>(m.head_dim) : inverse_of(m.attention_scale * m.attention_scale);
  c["query_pre_attn_scalar"] = scalar == std::round(scalar) ? Json(static_cast<std::int64_t>(scalar)) : Json(scalar);
  const auto cap = [](double value) { return value > 0 ? Json(value) : Json(); };
  c["attn_logit_softcapping"] = cap(m.attention_softcap), c["final_logit_softcapping"] = cap(m.logit_softcap);
}

bool slides_in_turns(std::int64_t layer, std::int64_t) { return layer % 2 == 0; }

constexpr auto gemma2_keys = std::to_array<FamilyKey>({{.name = "use_bidirectional_attention", .fixed = "null"}});
constexpr auto gemma3_keys = std::to_array<FamilyKey>({{.name = "use_bidirectional_attention", .fixed = "false"}});

constexpr auto gemma_names = std::to_array<TensorName>({{"layers.#.mlp.norm", "model.layers.#.pre_feedforward_layernorm.weight"},
                                                        {"layers.#.attention.post_norm", "model.layers.#.post_attention_layernorm.weight"},
                                                        {"layers.#.mlp.post_norm", "model.layers.#.post_feedforward_layernorm.weight"}});

}  // namespace

Family gemma_family() {
  return {.type = "gemma",
          .architecture = "GemmaForCausalLM",
          .standard = {.kv_heads = 16,
                       .head_dim = 256,
                       .norm_eps = 1e-6,
                       .tied = true,
                       .norm_form = NormForm::one_plus_weight,
                       .activation = Activation::gelu_tanh,
                       .embedding_scale = 0},
          .takes = has_heads_of_gemma,
          .read_model = read_gemma};
}

Family gemma2_family() {
  return {.type = "gemma2",
          .architecture = "Gemma2ForCausalLM",
          .standard = {.kv_heads = 4,
                       .head_dim = 256,
                       .norm_eps = 1e-6,
                       .tied = true,
                       .norm_placement = NormPlacement::both,
                       .norm_form = NormForm::one_plus_weight,
                       .embedding_scale = 0},
          .says = gemma_says,
          .takes = has_heads_of_gemma,
          .window = {.key = WindowRule::Key::always, .standard = 4096, .lists = true, .slides = slides_in_turns},
          .read_model = read_gemma2,
          .put_model = put_gemma,
          .keys = gemma2_keys,
          .names = gemma_names};
}

Family gemma3_family() {
  return {.type = "gemma3_text",
          .architecture = "Gemma3ForCausalLM",
          .standard = {.layers = 26,
                       .width = 2304,
                       .heads = 8,
                       .kv_heads = 4,
                       .head_dim = 256,
                       .ff_width = 9216,
                       .vocab = 262208,
                       .norm_eps = 1e-6,
                       .tied = true,
                       .qk_norm = true,
                       .norm_placement = NormPlacement::both,
                       .norm_form = NormForm::one_plus_weight,
                       .embedding_scale = 0,
                       .rope_theta = 1e6,
                       .max_context = 131072},
          .says = gemma_says,
          .takes = has_heads_of_gemma,
          .window = {.key = WindowRule::Key::always,
                     .standard = 4096,
                     .lists = true,
                     .slides = slides_but_each,
                     .number_key = "sliding_window_pattern",
                     .number = 6},
          .rotation = {.by_window = true, .theta = 10000, .theta_key = "rope_local_base_freq"},
          .read_model = read_gemma3,
          .put_model = put_gemma,
          .keys = gemma3_keys,
          .names = gemma_names};
}

}  // namespace tessera
