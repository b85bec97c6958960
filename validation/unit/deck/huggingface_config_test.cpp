// config.json of every family, as its card or transformers writes it, and what a deck cannot say of one.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include "base/json.hpp"

#include "../scratch.hpp"
#include "deck/import/import.hpp"
#include "deck/import/model_source.hpp"
#include "families/family.hpp"
#include "families/known_keys.hpp"
#include "small_deck.hpp"

namespace tessera::huggingface_config_test {
namespace {

/// `more` comes after what every configuration has; a key that stands in both is a fault.
std::string config(const std::string& type, const std::string& more, std::string activation = "") {
  const Family* family = family_named(type);
  if (activation.empty()) activation = type.starts_with("gemma") || (family && !family->standard.gated) ? "gelu_pytorch_tanh" : "silu";
  return fmt::format(R"({{"model_type": "{}", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 8,
"vocab_size": 300, "max_position_embeddings": 2048, "hidden_act": "{}", "torch_dtype": "bfloat16", "use_cache": true{}{}}})",
                     type, activation, more.empty() ? "" : ",\n", more);
}

std::string faults_of_config(const std::string& text, ModelSource* source = nullptr) {
  std::vector<Fault> faults;
  const ModelSource read = read_huggingface_config(text, "config.json", faults);
  if (source) *source = read;
  return faults_of({{}, faults, {}});
}

ModelSource source_of(const std::string& type, const std::string& more) {
  ModelSource source;
  EXPECT_EQ(faults_of_config(config(type, more), &source), "") << type;
  return source;
}

/// Of all families where their files leave a key out: what transformers takes then.
ModelKeys plain() {
  return {.layers = 3,
          .width = 64,
          .heads = 8,
          .kv_heads = 8,
          .head_dim = 8,
          .ff_width = 96,
          .vocab = 300,
          .norm_eps = 1e-6,
          .rope_scaling = RopeMode::none};
}

TEST(HuggingfaceConfig, Llama) {
  const ModelSource llama2 =
      source_of("llama", R"("architectures": ["LlamaForCausalLM"], "pretraining_tp": 1, "rope_scaling": null, "rms_norm_eps": 1e-05)");
  ModelKeys m = plain();
  m.norm_eps = 1e-5;
  EXPECT_EQ(llama2.model, m);
  EXPECT_EQ(llama2.architecture, "LlamaForCausalLM");
  EXPECT_EQ(llama2.context, 2048);
  // SmolLM is a Llama with its embedding as the head; Llama 3.2 has a stretched rotation too, which version 5 writes elsewhere.
  m.tied = true, m.kv_heads = 2, m.norm_eps = 1e-6;
  EXPECT_EQ(
      source_of("llama", R"("tie_word_embeddings": true, "num_key_value_heads": 2, "is_llama_config": true, "rope_interleaved": false)")
          .model,
      m);
  m.rope_theta = 5e5, m.rope_scaling = RopeMode::llama3, m.rope_factor = 32, m.rope_high_freq_factor = 4;
  const std::string part =
      R"("factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3")";
  const std::string rest = R"("tie_word_embeddings": true, "num_key_value_heads": 2, )";
  EXPECT_EQ(source_of("llama", rest + R"("rope_theta": 500000.0, "rope_scaling": {)" + part + "}").model, m);
  EXPECT_EQ(source_of("llama", rest + R"("rope_parameters": {"rope_theta": 500000.0, )" + part + "}").model, m);
}

TEST(HuggingfaceConfig, Rotations) {
  const auto model = [](const std::string& rotation) {
    return source_of("llama", R"("num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_scaling": {)" + rotation + "}").model;
  };
  ModelKeys m = plain();
  m.kv_heads = 2, m.norm_eps = 1e-6;
  m.rope_scaling = RopeMode::linear, m.rope_factor = 2;
  EXPECT_EQ(model(R"("type": "linear", "factor": 2.0)"), m);
  m.rope_scaling = RopeMode::dynamic, m.rope_original_context = 2048;
  EXPECT_EQ(model(R"("rope_type": "dynamic", "factor": 2)"), m);
  m.rope_scaling = RopeMode::yarn, m.rope_factor = 4;
  EXPECT_EQ(model(R"("rope_type": "yarn", "factor": 4.0, "truncate": true)"), m);
  m.rope_truncate = false;
  for (const char* no : {"false", "null"})  // to transformers null is false here
    EXPECT_EQ(model(fmt::format(R"("rope_type": "yarn", "factor": 4.0, "truncate": {})", no)), m);
  m.rope_truncate = true;
  m.rope_original_context = 512, m.rope_beta_fast = 16, m.rope_beta_slow = 2, m.rope_attention_factor = 1.25;
  const std::string original = R"("rope_type": "yarn", "original_max_position_embeddings": 512, )";
  EXPECT_EQ(model(original + R"("factor": 4.0, "beta_fast": 16, "beta_slow": 2, "attention_factor": 1.25)"), m);
  ModelKeys longer = plain();
  longer.kv_heads = 2, longer.norm_eps = 1e-6, longer.rope_scaling = RopeMode::longrope, longer.rope_original_context = 512;
  longer.rope_short_factors = {1, 1.5, 2, 2}, longer.rope_long_factors = {1, 3, 5, 9.5}, longer.rope_factor = 4;
  const std::string factors = R"("rope_type": "longrope", "short_factor": [1, 1.5, 2, 2.0], "long_factor": [1.0, 3.0, 5, 9.5])";
  EXPECT_EQ(model(factors + R"(, "original_max_position_embeddings": 512)"), longer) << "by max_position_embeddings";
  longer.rope_factor = 8, longer.rope_attention_factor = 1.25;
  EXPECT_EQ(model(factors + R"(, "original_max_position_embeddings": 512, "factor": 8, "attention_factor": 1.25)"), longer);
  const ModelKeys deepseek = model(original + R"("factor": 40, "mscale": 1.0, "mscale_all_dim": 0.5)");
  EXPECT_DOUBLE_EQ(deepseek.rope_attention_factor, (0.1 * std::log(40) + 1) / (0.05 * std::log(40) + 1));
}

TEST(HuggingfaceConfig, RopeScalingBesideRopeParameters) {
  const std::string yarn = R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64)";
  ModelKeys m = plain();
  m.rope_scaling = RopeMode::yarn, m.rope_factor = 4, m.rope_original_context = 64;
  const auto beside = [](const std::string& scaling, const std::string& parameters) {
    return scaling + R"(, "rope_parameters": {)" + parameters + "}";
  };
  // As transformers 5 takes both: rope_scaling alone.
  for (const std::string& same :
       {beside(yarn + "}", R"("rope_type": "default", "rope_theta": 10000.0)"), beside(yarn + "}", R"("rope_type": "default")"),
        beside(yarn + "}", R"("rope_type": null)"), beside(yarn + "}", ""), yarn + R"(}, "rope_parameters": null)",
        beside(yarn + "}", R"("type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "rope_theta": null)"),
        beside(R"("rope_scaling": null)", yarn.substr(yarn.find('{') + 1)),
        beside(R"("rope_scaling": {})", yarn.substr(yarn.find('{') + 1)), yarn + R"(, "rope_theta": 10000.0}, "rope_theta": 10000)"})
    EXPECT_EQ(source_of("llama", same).model, m) << same;
  m.rope_theta = 5e5;
  const std::string theta = R"("rope_type": "default", "rope_theta": 500000.0)";
  EXPECT_EQ(source_of("llama", beside(yarn + R"(, "rope_theta": 500000.0})", theta)).model, m);
  EXPECT_EQ(source_of("llama", beside(yarn + R"(}, "rope_theta": 500000.0)", theta)).model, m);
  // What one of the two says otherwise is not chosen here.
  const std::pair<std::string, const char*> refused[] = {
      {beside(yarn + "}", theta), "rope_theta: is 5e+05 in rope_parameters, but if both are present transformers reads only rope_scaling"},
      {beside(yarn + "}", R"("rope_type": "linear", "factor": 4.0)"), "rope_parameters: sets another rotation than rope_scaling"},
      {beside(R"("rope_scaling": {"rope_type": "default"})", R"("rope_type": "linear", "factor": 4.0)"), "sets another rotation"},
      {R"("rope_theta": 200000.0, "rope_parameters": {"rope_theta": 500000.0})",
       "rope_theta: is 5e+05 in rope_parameters, but 2e+05 outside"},
      {R"("rope_theta": 200000.0, "rope_scaling": {"rope_type": "linear", "factor": 2, "rope_theta": 500000.0})",
       "in rope_scaling, but 2e+05"},
      {R"("rope_scaling": {"rope_type": "linear", "type": "dynamic", "factor": 2})", "type: is \"dynamic\", but rope_type is \"linear\""},
      {R"("rope_scaling": {"factor": 2})", "factor: is in rope_scaling without a rope_type"},
      {R"("rope_scaling": [1])", "rope_scaling: expected an object"},
      {R"("rope_parameters": {"full_attention": {"rope_type": "default"}})", "full_attention: belongs to a rotation"}};
  for (const auto& [text, says] : refused) {
    const std::string faults = faults_of_config(config("llama", text));
    EXPECT_TRUE(test::has(faults, says)) << text << " says\n" << faults;
    EXPECT_EQ(std::count(faults.begin(), faults.end(), '\n'), 1) << faults;
  }
}

TEST(HuggingfaceConfig, MistralAndMixtral) {
  ModelKeys m = plain();
  EXPECT_EQ(source_of("mistral", R"("sliding_window": null, "num_key_value_heads": 8, "head_dim": null)").model, m);
  m.experts = 4, m.experts_per_token = 2, m.expert_ff_width = 96, m.norm_eps = 1e-5, m.rope_theta = 1e6;
  EXPECT_EQ(source_of("mixtral",
                      R"("num_local_experts": 4, "router_aux_loss_coef": 0.02, "output_router_logits": false, "router_jitter_noise": 0.0)")
                .model,
            m)
      << "what a Mixtral's file leaves out is not what a Llama's does";
  // The one key of those without a number of the model that transformers' training reads: it is said.
  for (const bool asked : {false, true}) {
    const ModelSource source = source_of("mixtral", fmt::format(R"("num_local_experts": 4, "output_router_logits": {})", asked));
    EXPECT_EQ(source.model, m);
    EXPECT_EQ(
        fmt::format("{}", fmt::join(source.notes, " ")).find("output_router_logits (with it transformers trains") != std::string::npos,
        asked);
  }
}

TEST(HuggingfaceConfig, Qwen) {
  ModelKeys m = plain();
  m.qkv_bias = true, m.kv_heads = 2;
  const std::string window = R"(, "num_key_value_heads": 2, "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 21)";
  EXPECT_EQ(source_of("qwen2", R"("attention_dropout": 0.0, "use_mrope": false)" + window).model, m);
  m.qkv_bias = false, m.qk_norm = true, m.head_dim = 128;
  EXPECT_EQ(source_of("qwen3", R"("layer_types": ["full_attention", "full_attention", "full_attention"])" + window).model, m)
      << "its head_dim is 128 where the file has none";
  m.qk_norm = false, m.qkv_bias = true, m.head_dim = 8;
  m.experts = 6, m.experts_per_token = 3, m.expert_ff_width = 16, m.shared_ff_width = 40, m.normalize_top_k = false;
  const std::string experts =
      R"("num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 16, "decoder_sparse_step": 1, "mlp_only_layers": [])" +
      window;
  EXPECT_EQ(source_of("qwen2_moe", R"("shared_expert_intermediate_size": 40, )" + experts).model, m);
  m.qkv_bias = false, m.qk_norm = true, m.shared_ff_width = 0, m.normalize_top_k = true;
  EXPECT_EQ(source_of("qwen3_moe", R"("norm_topk_prob": true, )" + experts).model, m);
  std::string local = experts;
  local.replace(local.find("num_experts"), 11, "num_local_experts");
  EXPECT_EQ(source_of("qwen3_moe", R"("norm_topk_prob": true, )" + local).model, m) << "as transformers 5 writes it";
  const ModelSource biased = source_of("qwen3", R"("attention_bias": true, "head_dim": 8)" + window);
  EXPECT_TRUE(biased.model.qkv_bias && biased.model.qk_norm && biased.model.attention_out_bias);
  EXPECT_TRUE(source_of("llama", R"("attention_bias": true)").model.attention_out_bias);
}

TEST(HuggingfaceConfig, RefusesByName) {
  struct Case {
    const char *type, *more, *says;
  };
  const Case cases[] = {
      {"llama", R"("architectures": ["LlamaForSequenceClassification"])",
       "architectures: \"LlamaForSequenceClassification\" is not supported for "
       "model_type \"llama\"; supported: ApertusForCausalLM, "},
      {"llama", R"("architectures": [])", "architectures: "},
      {"llama", R"("rope_scaling": {"rope_type": "ntk", "factor": 4.0})", "rope_type: \"ntk\" is not in this version"},
      {"llama", R"("rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 64})",
       "has no factor, which a rotation of type yarn needs"},
      {"llama", R"("rope_scaling": {"rope_type": "dynamic", "factor": "2"})", "factor: expected a number"},
      {"llama", R"("rope_parameters": {"rope_type": "llama3", "factor": 8.0})", "has no low_freq_factor"},
      {"llama", R"("rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5})",
       "partial_rotary_factor: belongs to a rotation"},
      {"mistral", R"("attention_bias": true)", "attention_bias: a bias on the attention's output"},
      {"cwm", R"("mlp_bias": true)", "mlp_bias: "},
      {"llama", R"("attention_dropout": 0.1)", "attention_dropout: dropout is not in this version"},
      {"llama", R"("quantization_config": {"quant_method": "gptq"})", "quantization_config: quantized weights"},
      {"llama", R"("auto_map": {"AutoModel": "modeling_x.X"})", "auto_map: the model brings code of its own"},
      {"llama", R"("logit_scale": 0.5)", "logit_scale: is not a known key of model_type \"llama\""},
      {"llama", R"("num_experts": 4)", "num_experts: is not a known key of model_type \"llama\""},
      {"mistral", R"("sliding_window": "wide")", "sliding_window: expected an integer"},
      {"llama", R"("layer_types": ["chunked_attention"])", "layer_types: a layer of \"chunked_attention\""},
      {"qwen3", R"("layer_types": ["full_attention", "sliding_attention"])", "layer_types: has 2 layers, but num_hidden_layers is 3"},
      {"mixtral", R"("router_jitter_noise": 0.01)", "router_jitter_noise: "},
      {"qwen3_moe", R"("num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "decoder_sparse_step": 0)",
       "decoder_sparse_step: is not a number of layers"},
      {"qwen3_moe", R"("num_experts": 4, "num_local_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 8)",
       "num_local_experts: is not num_experts"},
      {"qwen3_moe", R"("num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "mlp_only_layers": 2)",
       "mlp_only_layers: expected a list of layers"}};
  for (const Case& c : cases) {
    const std::string text = faults_of_config(config(c.type, c.more));
    EXPECT_TRUE(test::has(text, c.says)) << c.type << " with " << c.more << " says\n" << text;
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), c.type == std::string("llama") && test::has(text, "has no low") ? 3 : 1) << text;
  }
  const std::string broken = faults_of_config("{\"model_type\": \"llama\",");
  EXPECT_TRUE(test::has(broken, "config.json:1:")) << broken;
}

TEST(HuggingfaceConfig, ActivationsAreOfGatesOrOfFeaturesWithoutOne) {
  const auto taken = [](const char* type, const char* activation) {
    ModelSource source;
    const std::string faults = faults_of_config(config(type, "", activation), &source);
    if (!faults.empty()) {
      EXPECT_TRUE(test::has(faults, fmt::format("hidden_act: \"{}\" is not in this version", activation))) << faults;
    }
    return faults.empty();
  };
  for (const char* word : {"silu", "swish", "gelu", "gelu_new"}) EXPECT_TRUE(taken("llama", word)) << word;
  for (const char* word : {"relu2", "xielu", "relu"}) EXPECT_FALSE(taken("llama", word)) << word;
  for (const char* word : {"gelu", "gelu_pytorch_tanh", "relu2"}) EXPECT_TRUE(taken("starcoder2", word)) << word;
  for (const char* word : {"silu", "xielu"}) EXPECT_FALSE(taken("starcoder2", word)) << word;
  for (const char* word : {"gelu", "relu2", "xielu"}) EXPECT_TRUE(taken("apertus", word)) << word;
  EXPECT_FALSE(taken("apertus", "silu"));
}

/// A configuration of the family that says all that its reader must be told.
Json whole_config(const std::string& type) {
  if (type == "gpt2")
    return Json::parse(R"({"model_type": "gpt2", "vocab_size": 300, "n_positions": 64, "n_embd": 64, "n_layer": 3, "n_head": 8,
                           "n_inner": 96, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-6, "n_ctx": 64})");
  const std::string experts =
      type == "mixtral" || type == "minimax_m2" || type.starts_with("granitemoe") ? R"("num_local_experts": 4, "num_experts_per_tok": 2)"
      : type == "olmoe"                                                           ? R"("num_experts": 4, "num_experts_per_tok": 2)"
      : type == "glm4_moe" || type == "dots1"
          ? R"("n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 2, "n_group": 2)"
      : type.ends_with("moe")
          ? R"("num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 40)"
          : R"("bos_token_id": 1)";
  Json all = Json::parse(config(type, experts + R"(, "num_key_value_heads": 2, "sliding_window": null)"));
  if (type == "qwen3_moe") all.erase("shared_expert_intermediate_size");
  if (type == "cohere2") all["sliding_window"] = 7;
  if (type == "granitemoehybrid") all["layer_types"] = Json::parse(R"(["attention", "attention", "attention"])");
  return all;
}

TEST(HuggingfaceConfig, NullIsAbsentAsInTransformers) {
  const std::set<std::string> needed = {
      "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size", "n_embd", "n_layer", "n_head"};
  const std::set<std::string> not_alone = {"model_type", "num_key_value_heads", "head_dim", "sliding_window"};  // below
  for (const Family& family : families()) {
    Json all = whole_config(std::string(family.type));
    std::set<std::string> keys = {"rope_theta",   "rope_scaling",   "rope_parameters",     "rms_norm_eps",    "initializer_range",
                                  "mlp_bias",     "attention_bias", "tie_word_embeddings", "layer_types",     "architectures",
                                  "qkv_bias",     "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "use_sliding_window",
                                  "eos_token_id", "nobody_knows"};
    for (const auto& [key, value] : all.items()) keys.insert(key);
    for (const huggingface::Refused& row : huggingface::refused_keys) keys.emplace(row.key);
    for (const huggingface::Idle& row : huggingface::idle) keys.emplace(row.key);
    for (const std::string& key : keys) {
      if (not_alone.contains(key)) continue;
      Json null = all, absent = all;
      null[key] = nullptr, absent.erase(key);
      ModelSource of_null, of_absent;
      const std::string said = faults_of_config(null.dump(1), &of_null), same = faults_of_config(absent.dump(1), &of_absent);
      EXPECT_EQ(said, same) << family.type << " " << key;
      EXPECT_EQ(of_null.model, of_absent.model) << family.type << " " << key;
      const bool has_standard = family.type == "gemma3_text";  // of its own for what makes its size
      EXPECT_EQ(test::has(said, key + ": is missing"), (needed.contains(key) && !has_standard) || !said.empty())
          << family.type << " " << key << "\n"
          << said;
    }
  }
  // Where null says something of its own.
  EXPECT_EQ(source_of("qwen2", R"("num_key_value_heads": null)").model.kv_heads, 8) << "not the class's 32";
  EXPECT_EQ(source_of("qwen3", R"("head_dim": null, "num_key_value_heads": 2)").model.head_dim, 8) << "not the class's 128";
}

TEST(HuggingfaceConfig, NothingThatStandsThereIsSilent) {
  for (const Family& family : families()) {
    Json all = whole_config(std::string(family.type));
    for (const std::string_view key : huggingface::harmless) all[std::string(key)] = "whatever";
    ModelSource source;
    EXPECT_EQ(faults_of_config(all.dump(1), &source), "") << family.type;
    EXPECT_EQ(source.notes.empty(), family.type != "seed_oss" && family.type != "gpt2") << family.type;
    for (const std::string_view key : huggingface::unused) all[std::string(key)] = 0.5;
    EXPECT_EQ(faults_of_config(all.dump(1), &source), "") << family.type;
    ASSERT_EQ(source.notes.size(), 1u) << family.type;
    for (const std::string_view key : huggingface::unused) EXPECT_TRUE(test::has(source.notes[0], std::string(key))) << key;
    all["nobody_knows"] = false;
    EXPECT_TRUE(test::has(faults_of_config(all.dump(1)), "nobody_knows: is not a known key")) << family.type;
  }
  const ModelSource linear = source_of("llama", R"("rope_scaling": {"rope_type": "linear", "factor": 2, "beta_fast": 32, "mscale": null})");
  EXPECT_EQ(linear.notes, std::vector<std::string>{"config.json: not used: rope_scaling.beta_fast"});
}

TEST(HuggingfaceConfig, DifferencesFromADeckAreNamedAtOnce) {
  ModelSource source;
  source.model = plain();
  ModelKeys deck = plain();
  deck.init_std = 0.5, deck.router_aux_loss = 0.1;
  EXPECT_TRUE(model_differences(deck, source).empty()) << "what does not change the trained function";
  deck.layers = 4, deck.vocab = 320, deck.norm_eps = 1e-5, deck.tied = true;
  EXPECT_EQ(model_differences(deck, source),
            (std::vector<std::string>{"model.layers = 4, but num_hidden_layers is 3", "model.vocab = 320, but vocab_size is 300",
                                      "model.tied = true, but tie_word_embeddings is false",
                                      "model.norm_eps = 1e-05, but rms_norm_eps is 1e-06"}));
  deck = source.model;
  source.model.attention_scale = 1 / std::sqrt(static_cast<double>(deck.head_dim)), deck.embedding_scale = 0;
  source.model.embedding_scale = std::sqrt(static_cast<double>(deck.width));
  EXPECT_TRUE(model_differences(deck, source).empty()) << "as an export says what 0 stands for";
  source.model.attention_scale = 0.25;
  EXPECT_EQ(model_differences(deck, source).size(), 1u);
  deck = source.model;
  deck.window = 7, deck.norm_placement = NormPlacement::post;
  EXPECT_EQ(
      model_differences(deck, source),
      (std::vector<std::string>{"model.norm_placement = \"post\", but the placement of its model_type's norms is \"pre\"",
                                "layers (model.window, model.positions, model.pattern): 3 with a window of 7 tokens; but its files have: "
                                "all see all tokens"}));
}

TEST(FromHuggingface, ADeckThatIsTakenAsItIs) {
  const test::Scratch scratch;
  test::spill(scratch / "config.json", config("llama", R"("num_key_value_heads": 2, "tie_word_embeddings": true)"));
  const ImportedDeck alone = import_huggingface({.path = scratch.path(), .model = "", .overrides = {"run.steps=7"}, .ranks = 2});
  EXPECT_EQ(faults_of({{}, alone.faults, {}}), "");
  const ParsedDeck parsed = parse_deck_text(alone.text, "llama.toml", {}, 2);
  EXPECT_EQ(faults_of(parsed), "") << alone.text;
  ModelKeys m = plain();
  m.kv_heads = 2, m.tied = true, m.max_context = 2048;
  EXPECT_EQ(parsed.deck.model, m);
  EXPECT_EQ(parsed.deck.batch.sequence_length, 2048);
  EXPECT_EQ(parsed.deck.run.steps, 7);
  EXPECT_EQ(parsed.deck.run.init, "") << "there are no weights";
  EXPECT_EQ(alone.text, import_huggingface({.path = scratch.path(), .model = "", .overrides = {"run.steps=7"}, .ranks = 2}).text);
  test::spill(scratch / "model.safetensors", "");
  const ImportedDeck with_weights = import_huggingface({.path = scratch.path(), .model = "", .overrides = {}});
  EXPECT_EQ(parse_deck_text(with_weights.text, "llama.toml", {}, 0).deck.run.init, scratch.path());
  EXPECT_TRUE(test::has(with_weights.text, "FILL IN") && test::has(with_weights.text, "LlamaForCausalLM")) << with_weights.text;
}

TEST(FromHuggingface, AHeadOfItsOwnGoesBeforeTheConfiguration) {
  const test::Scratch scratch;
  const std::string folder = scratch.path();
  for (const bool says_tied : {true, false})
    for (const bool own : {true, false}) {
      test::spill(scratch / "config.json", config("llama", fmt::format(R"("tie_word_embeddings": {})", says_tied)));
      int asked = 0;
      const auto head = [&](const std::string& of) {
        ++asked;
        EXPECT_EQ(of, folder);
        return own;
      };
      const ImportRequest request{
          .path = folder, .model = folder, .overrides = {"data.train=a.h5", "run.steps=7"}, .ranks = 1, .own_head = head};
      ImportedDeck from_hf = import_huggingface(request);
      ImportedDeck from_deepspeed = import_deepspeed_text(R"({"train_batch_size": 4, "train_micro_batch_size_per_gpu": 4,
"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "bf16": {"enabled": true}})",
                                                          request);
      EXPECT_EQ(asked, says_tied ? 2 : 0) << "the weights are read where the answer counts";
      for (const ImportedDeck& made : {from_hf, from_deepspeed}) {
        EXPECT_EQ(faults_of({{}, made.faults, {}}), "");
        EXPECT_EQ(parse_deck_text(made.text, "made.toml", {}, 1).deck.model.tied, says_tied && !own) << made.text;
        EXPECT_EQ(made.notes.size(), says_tied && own ? 1u : 0u);
      }
    }
}

TEST(FromHuggingface, RefusesWithTheFilesPlaces) {
  const test::Scratch scratch;
  const auto faults = [&] {
    return faults_of({{}, import_huggingface({.path = scratch.path(), .model = "", .overrides = {}}).faults, {}});
  };
  EXPECT_TRUE(test::has(faults(), "config.json: cannot open: No such file")) << faults();
  test::spill(scratch / "config.json", config("llama", "\"sliding\": 3"));
  EXPECT_TRUE(test::has(faults(), "/config.json:3:1: sliding: ")) << faults();
  test::spill(scratch / "config.json", config("llama", "\"head_dim\": 7"));
  EXPECT_TRUE(test::has(faults(), "a head dim of 7 is odd")) << faults();
}

}  // namespace
}  // namespace tessera::huggingface_config_test
