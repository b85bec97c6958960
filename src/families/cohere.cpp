// Command R and Aya (cohere), Command R7B and A (cohere2): attention and feed-forward side by side, LayerNorm without a bias, rotations of
// neighbouring features, scaled logits. Of cohere2 three of four layers have a window, and those that see all keys are not rotated.
#include <algorithm>
#include <array>

#include "families/layers.hpp"

namespace tessera {
namespace {

constexpr std::int64_t usual_window = 4096;

/// Of Cohere's own program: the class computes what these say, and reads none of them.
void require_usual(ConfigReader& config) {
  for (const char* key : {"use_parallel_block", "use_gated_activation"})
    if (!config.truth(key, true)) config.fault(key, "differs from the block that the class of this model_type computes");
  if (config.text("position_embedding_type", "rope_gptj") != "rope_gptj")
    config.fault("position_embedding_type", "differs from the rotation that the class of this model_type computes");
  if (config.real("rotary_pct", 1) != 1) config.fault("rotary_pct", "the rotation of a part of a head's features is not in this version");
  if (config.text("order_of_interleaved_layers", "local_attn_first") != "local_attn_first")
    config.fault("order_of_interleaved_layers", "differs from the order of layers in the class of this model_type; write layer_types");
}

void read_cohere(ConfigReader& config, ModelKeys& m) {
  require_usual(config);
  for (const char* key : {"use_parallel_embedding", "model_max_length", "layer_switch"}) config.find(key);  // of programs
  if (const bool tied = config.truth("use_embedding_sharing", m.tied); tied != m.tied)
    config.fault("use_embedding_sharing", "contradicts tie_word_embeddings, the only key that the class of this model_type reads");
  if (config.truth("use_qk_norm", false))
    config.fault("use_qk_norm", "LayerNorm of queries and keys, with weights of each head (Command R+), is not in this version");
  if (!(m.logit_scale > 0)) config.fault("logit_scale", "is not a number above 0"), m.logit_scale = 1;
}

void read_cohere2(ConfigReader& config, ModelKeys& m) {
  read_cohere(config, m);
  const JsonNode* size = config.find("sliding_window");
  if (config.is_null("sliding_window") || (size && config.whole(*size) == 0))
    config.fault("sliding_window", "is not a window, which the class of this model_type needs");
}

/// Their class knows its own name of the key alone.
void put_cohere(Json& c, const ModelKeys&) { c.erase("rms_norm_eps"); }

void read_rotated_layers(ConfigReader&, std::vector<LayerKeys>& layers) {
  for (LayerKeys& keys : layers)
    if (keys.window == 0) keys.positions = PositionMode::none;
}

/// The class asks for a window even where no layer has one.
void put_window_of_none(Json& c, const ModelKeys& m) {
  if (windows_of(m).size == 0) c["sliding_window"] = usual_window;
}

constexpr auto cohere_keys = std::to_array<FamilyKey>({{.name = "layer_norm_eps", .field = &ModelKeys::norm_eps},
                                                       {.name = "logit_scale", .field = &ModelKeys::logit_scale},
                                                       {.name = "use_qk_norm", .fixed = "false"}});

constexpr auto cohere2_keys = std::span(cohere_keys).first<2>();

}  // namespace

Family cohere_family() {
  return {.type = "cohere",
          .architecture = "CohereForCausalLM",
          .standard = {.norm_eps = 1e-5,
                       .tied = true,
                       .norm_placement = NormPlacement::parallel,
                       .norm_form = NormForm::layer_norm_no_bias,
                       .logit_scale = 0.0625,
                       .rope_theta = 500000,
                       .rope_pairs = RopePairs::neighbours,
                       .max_context = 8192},
          .read_model = read_cohere,
          .put_model = put_cohere,
          .output_bias = true,
          .keys = cohere_keys};
}

Family cohere2_family() {
  Family family = cohere_family();
  family.type = "cohere2", family.architecture = "Cohere2ForCausalLM", family.keys = cohere2_keys;
  family.standard.rope_theta = 10000;
  family.window = {.key = WindowRule::Key::always,
                   .standard = usual_window,
                   .lists = true,
                   .slides = slides_but_each,
                   .number_key = "sliding_window_pattern",
                   .number = 4};
  family.read_model = read_cohere2, family.read_layers = read_rotated_layers, family.put_layers = put_window_of_none;
  return family;
}

}  // namespace tessera
