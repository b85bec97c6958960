#include "families/write_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/byte_tokenizer.hpp"
#include "base/check.hpp"
#include "base/json.hpp"
#include "families/activation.hpp"
#include "families/layers.hpp"

namespace tessera {
namespace {

void put_keys(Json& c, const ModelKeys& m, std::span<const FamilyKey> keys) {
  for (const FamilyKey& key : keys) {
    Json& value = c[std::string(key.name)];
    if (const auto* whole = std::get_if<std::int64_t ModelKeys::*>(&key.field))
      value = m.**whole;
    else if (const auto* real = std::get_if<double ModelKeys::*>(&key.field))
      value = m.**real;
    else if (const auto* truth = std::get_if<bool ModelKeys::*>(&key.field))
      value = m.**truth;
    else if (const auto* activation = std::get_if<Activation ModelKeys::*>(&key.field))
      value = word_of_theirs(m.**activation);
    else
      value = Json::parse(std::string(key.fixed));
  }
}

std::string torch_name(DType dtype) {
  TESSERA_REQUIRE(is_float(dtype), "a model of {} for transformers", name_of(dtype));
  return std::string(row_of(dtype).torch);
}

/// Of longrope cosines and sines are scaled by it, as its factor times the original context.
std::int64_t context_of(const Deck& deck) {
  const ModelKeys& m = deck.model;
  const std::int64_t context = m.max_context > 0 ? m.max_context : deck.batch.sequence_length;
  if (m.rope_scaling == RopeMode::dynamic) return m.rope_original_context;
  return m.rope_scaling == RopeMode::longrope
             ? std::max<std::int64_t>(context, std::llround(m.rope_factor * static_cast<double>(m.rope_original_context)))
             : context;
}

/// By the three keys that files of the class have, and the factor of cosines and sines where the context does not say it.
Json longrope_alone(const Deck& deck) {
  const ModelKeys& m = deck.model;
  Json c{{"type", "longrope"}, {"short_factor", m.rope_short_factors}, {"long_factor", m.rope_long_factors}};
  const auto original = static_cast<double>(m.rope_original_context);
  if (m.rope_attention_factor > 0)
    c["attention_factor"] = m.rope_attention_factor;
  else if (static_cast<double>(context_of(deck)) / original != m.rope_factor)
    c["attention_factor"] = m.rope_factor <= 1 ? 1.0 : std::sqrt(1 + std::log(m.rope_factor) / std::log(original));
  return c;
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
      if (!m.rope_truncate) c["truncate"] = false;
      c["original_max_position_embeddings"] = m.rope_original_context;
      break;
    case RopeMode::longrope:
      c["short_factor"] = m.rope_short_factors, c["long_factor"] = m.rope_long_factors;
      if (m.rope_attention_factor > 0) c["attention_factor"] = m.rope_attention_factor;
      c["original_max_position_embeddings"] = m.rope_original_context;
      break;
    case RopeMode::linear:
    case RopeMode::dynamic:  // goes by max_position_embeddings
      break;
  }
  return c;
}

/// What is said of the rotation of both kinds of layers: rope_parameters in the form of transformers 5 too, which takes it alone.
void put_window_rotation(Json& c, const RotationRule& rule, const ModelKeys& m) {
  const auto said = [](double theta, Json scaling) {
    if (scaling == Json()) scaling = Json{{"rope_type", "default"}};
    scaling["rope_theta"] = theta;
    return scaling;
  };
  const WindowTraits windows = windows_of(m);
  if (!rule.theta_key.empty()) c[std::string(rule.theta_key)] = windows.theta;
  c["rope_parameters"] = Json{{"full_attention", said(m.rope_theta, rotation(m))},
                              {"sliding_attention", said(windows.theta, windows.scaled ? rotation(m) : Json())}};
}

void put_usual_keys(Json& c, const Deck& deck, const Family& family) {
  const ModelKeys& m = deck.model;
  put_keys(c, m, shared_keys());
  c["max_position_embeddings"] = context_of(deck);
  c["initializer_range"] = m.init_std;
  c["attention_bias"] = family.output_bias && m.qkv_bias;
  put_keys(c, m, family.keys);
  put_windows(c, family.window, m);
  if (family.put_model) family.put_model(c, m);
  if (family.put_layers) family.put_layers(c, m);
  c["attention_dropout"] = 0.0;
  // The keys of transformers 4, which version 5 reads as well.
  c["rope_theta"] = m.rope_theta;
  c["rope_scaling"] = family.rotation.longrope_alone && m.rope_scaling == RopeMode::longrope ? longrope_alone(deck) : rotation(m);
  if (family.rotation.by_window) put_window_rotation(c, family.rotation, m);
  if (m.rope_scaling == RopeMode::none && family.standard.rope_scaling != RopeMode::none)
    c["rope_scaling"] = Json{{"rope_type", "default"}};  // null is the class's own
}

void put_own_keys(Json& c, const ModelKeys& m, const Family& family) {
  put_keys(c, m, family.own_keys);
  c["initializer_range"] = m.init_std;
  put_keys(c, m, family.keys);
  if (family.put_model) family.put_model(c, m);
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
  c["pad_token_id"] = Json();  // the default of some classes is beyond a small vocabulary, and they cannot be loaded then
}

}  // namespace

Json model_config(const Family& family, const Deck& deck) {
  Json c;
  c["architectures"] = {family.architecture};
  c["model_type"] = family.type;
  family.own_keys.empty() ? put_usual_keys(c, deck, family) : put_own_keys(c, deck.model, family);
  return c;
}

std::string huggingface_config(const Deck& deck, DType dtype, const std::optional<TokenIds>& ids) {
  Json c = model_config(require_family(deck.model), deck);
  put_token_ids(c, deck.model, ids);
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
