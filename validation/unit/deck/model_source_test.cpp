// Where an imported deck's [model] comes from: a name, another deck, a config.json.
#include "deck/import/model_source.hpp"
#include "families/family.hpp"

#include <gtest/gtest.h>

#include "../scratch.hpp"
#include "deck/kinds_of_layers.hpp"
#include "small_deck.hpp"

namespace tessera::model_source_test {
namespace {

std::string text_of(const std::vector<Fault>& faults) { return faults_of({{}, faults, {}}); }

/// Weights of a model whose embedding is counted once where it is tied.
std::int64_t parameters(const ModelKeys& m) {
  const std::int64_t attention =
      m.width * m.head_dim * 2 * (m.heads + m.kv_heads) + (m.qkv_bias ? m.head_dim * (m.heads + 2 * m.kv_heads) : 0);
  const std::int64_t layer = attention + 3 * m.width * m.ff_width + 2 * m.width + (m.qk_norm ? 2 * m.head_dim : 0);
  return m.layers * layer + (m.tied ? 1 : 2) * m.vocab * m.width + m.width;
}

// The numbers of parameters are those that the models' cards give.
TEST(ModelSource, PresetsHaveTheirCardsParameters) {
  for (const auto& [name, count] : std::vector<std::pair<std::string, std::int64_t>>{{"llama2-7b", 6738415616},
                                                                                     {"llama2-13b", 13015864320},
                                                                                     {"llama2-70b", 68976648192},
                                                                                     {"llama3-8b", 8030261248},
                                                                                     {"llama3-70b", 70553706496},
                                                                                     {"llama3.1-405b", 405853388800},
                                                                                     {"llama3.2-1b", 1235814400},
                                                                                     {"llama3.2-3b", 3212749824},
                                                                                     {"mistral-7b", 7248023552},
                                                                                     {"qwen2.5-0.5b", 494032768},
                                                                                     {"qwen2.5-7b", 7615616512},
                                                                                     {"qwen2.5-72b", 72706203648},
                                                                                     {"qwen3-0.6b", 596049920},
                                                                                     {"qwen3-8b", 8190735360},
                                                                                     {"qwen3-32b", 32762123264}}) {
    std::vector<Fault> faults;
    const ModelSource source = read_model(name, faults);
    EXPECT_EQ(text_of(faults), "") << name;
    EXPECT_EQ(parameters(source.model), count) << name;
  }
}

TEST(ModelSource, AWrongNameListsTheKnownOnes) {
  std::vector<Fault> faults;
  EXPECT_EQ(read_model("lama3-8b", faults).model.layers, 0);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_TRUE(faults[0].str().starts_with("--model: \"lama3-8b\" is not a known model; did you mean llama3-8b? They are llama2-7b, "))
      << faults[0].str();
}

TEST(ModelSource, ADeckGivesItsModelAlone) {
  const test::Scratch scratch;
  const std::string path = scratch / "only_model.toml";
  test::spill(path, "[model]\nlayers = 3\nwidth = 96\nheads = 6\nff_width = 128\nvocab = 257\ntied = true\n");
  std::vector<Fault> faults;
  const ModelSource source = read_model(path, faults);
  EXPECT_EQ(text_of(faults), "") << "a deck may lack all but its model";
  EXPECT_EQ(source.model.layers, 3);
  EXPECT_EQ(source.model.head_dim, 16);
  EXPECT_TRUE(source.model.tied);
  test::spill(path, "[model]\nlayers = 3\nwidth = \"wide\"\nheads = 6\nff_width = 128\n");
  read_model(path, faults);
  ASSERT_EQ(faults.size(), 2u) << text_of(faults);
  EXPECT_EQ(faults[0].key, "model.width");
  EXPECT_EQ(faults[1].key, "model.vocab");
}

constexpr const char* llama31 = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": false, "hidden_act": "silu",
  "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": false, "vocab_size": 128256,
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}
})";

TEST(ModelSource, ReadsConfigurationsOfHuggingFace) {
  std::vector<Fault> faults;
  const ModelSource llama = read_huggingface_config(llama31, "config.json", faults);
  const ModelSource preset = read_model("llama3.1-8b", faults);
  EXPECT_EQ(text_of(faults), "");
  EXPECT_EQ(llama.model, preset.model);
  EXPECT_EQ(llama.context, 131072);
  // Version 5 of transformers writes the rotation elsewhere.
  const ModelSource qwen = read_huggingface_config(
      R"({"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
          "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "vocab_size": 151936,
          "use_sliding_window": false, "sliding_window": null, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000}})",
      "config.json", faults);
  EXPECT_EQ(text_of(faults), "");
  EXPECT_EQ(qwen.model, read_model("qwen3-0.6b", faults).model);
}

TEST(ModelSource, ReadsConfigurationsWithExperts) {
  std::vector<Fault> faults;
  const ModelKeys mixtral = read_huggingface_config(
                                R"({"model_type": "mixtral", "hidden_size": 6144, "intermediate_size": 16384, "num_hidden_layers": 56,
          "num_attention_heads": 48, "num_key_value_heads": 8, "vocab_size": 32768, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0,
          "num_local_experts": 8, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.001, "sliding_window": null})",
                                "config.json", faults)
                                .model;
  EXPECT_EQ(text_of(faults), "");
  EXPECT_EQ(mixtral.experts, 8);
  EXPECT_EQ(mixtral.experts_per_token, 2);
  EXPECT_EQ(mixtral.expert_ff_width, 16384);
  EXPECT_TRUE(mixtral.normalize_top_k);
  EXPECT_FALSE(mixtral.qk_norm || mixtral.qkv_bias);
  const std::string qwen = R"({"model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
    "num_attention_heads": 16, "vocab_size": 151936, "rms_norm_eps": 1e-6, "num_experts": 60, "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "norm_topk_prob": false, "decoder_sparse_step": STEP,
    "mlp_only_layers": []})";
  const auto with_step = [&](const char* step) { return std::string(qwen).replace(qwen.find("STEP"), 4, step); };
  const ModelKeys moe = read_huggingface_config(with_step("1"), "config.json", faults).model;
  EXPECT_EQ(text_of(faults), "");
  EXPECT_EQ(moe.experts, 60);
  EXPECT_EQ(moe.expert_ff_width, 1408);
  EXPECT_EQ(moe.shared_ff_width, 5632);
  EXPECT_FALSE(moe.normalize_top_k);
  EXPECT_TRUE(moe.qkv_bias);
}

// Of a Qwen with experts: the step counts layers from 1, the list from 0.
TEST(ModelSource, ReadsWhichLayersHaveExperts) {
  const auto read = [](const std::string& keys) {
    std::vector<Fault> faults;
    const ModelSource source = read_huggingface_config(
        R"({"model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 8,
            "vocab_size": 300, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, )" +
            keys + "}",
        "config.json", faults);
    EXPECT_EQ(text_of(faults), "");
    return source;
  };
  const struct {
    std::string keys, dense, pattern;
    std::int64_t first;
  } cases[] = {
      {R"("decoder_sparse_step": 1, "mlp_only_layers": [])", "none", "", 0},
      {R"("decoder_sparse_step": 2)", "0, 2, 4", "DG", 0},
      {R"("decoder_sparse_step": 3, "mlp_only_layers": [5])", "0 to 1, 3 to 5", "DDGD", 0},
      {R"("mlp_only_layers": [0, 1, 17])", "0 to 1", "", 2},
      {R"("mlp_only_layers": [1, 4])", "1, 4", "GDG", 0},
      {R"("mlp_only_layers": [1], "use_sliding_window": true, "sliding_window": 7)", "1", "LDLLL", 0},
  };
  for (const auto& c : cases) {
    const ModelSource source = read(c.keys);
    const ModelKeys& m = source.model;
    EXPECT_EQ(describe_dense(m), c.dense) << c.keys;
    EXPECT_EQ(m.pattern, c.pattern) << c.keys;
    EXPECT_EQ(m.dense_layers, c.first) << c.keys;
    EXPECT_EQ(family_of(m), family_named("qwen3_moe")) << c.keys;
  }
  ModelKeys deck = read(R"("decoder_sparse_step": 2)").model;
  EXPECT_TRUE(model_differences(deck, read(R"("decoder_sparse_step": 2, "mlp_only_layers": [0])")).empty());
  deck.kinds[0].experts = true;
  const auto differences = model_differences(deck, read(R"("decoder_sparse_step": 2)"));
  EXPECT_EQ(differences,
            std::vector<std::string>{"layers without experts (model.dense_layers, model.kinds): none; but its files have: 0, 2, 4"});
}

// As config.json of GLM-4.5-Air has it, but for tokens' numbers.
TEST(ModelSource, ReadsAGlm45) {
  const std::string text =
      R"({"architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "attention_dropout": 0.0, "pad_token_id": 151329,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "partial_rotary_factor": 0.5, "initializer_range": 0.02,
    "intermediate_size": 10944, "max_position_embeddings": 131072, "model_type": "glm4_moe", "moe_intermediate_size": 1408,
    "norm_topk_prob": true, "num_attention_heads": 96, "n_group": 1, "topk_group": 1, "n_routed_experts": 128, "n_shared_experts": 1,
    "routed_scaling_factor": 1.0, "num_experts_per_tok": 8, "first_k_dense_replace": 1, "num_hidden_layers": 46,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 1000000, "num_nextn_predict_layers": 1,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "use_qk_norm": false, "vocab_size": 151552})";
  std::vector<Fault> faults;
  const ModelSource source = read_huggingface_config(text, "config.json", faults);
  EXPECT_EQ(text_of(faults), "");
  const ModelKeys& m = source.model;
  EXPECT_EQ(m.experts, 128);
  EXPECT_EQ(m.dense_layers, 1);
  EXPECT_EQ(m.shared_ff_width, 1408);
  EXPECT_FALSE(m.shared_gate);
  EXPECT_EQ(m.router_scores, RouterScores::sigmoid);
  EXPECT_EQ(m.router_balance, RouterBalance::bias);
  EXPECT_EQ(m.rotary_fraction, 0.5);
  EXPECT_EQ(m.rope_pairs, RopePairs::halves);
  EXPECT_TRUE(m.qkv_bias && !m.attention_out_bias && !m.qk_norm);
  EXPECT_EQ(source.further_layers, 1);
  ASSERT_EQ(source.notes.size(), 1u);
  EXPECT_NE(source.notes[0].find("num_nextn_predict_layers"), std::string::npos) << source.notes[0];
  ModelKeys other = m;
  other.router_balance = RouterBalance::loss, other.dense_layers = 2;
  const std::vector<std::string> differences = model_differences(other, source);
  EXPECT_EQ(differences.size(), 2u);
  const auto with = [&](const std::string& was, const std::string& now) {
    std::string changed = text;
    changed.replace(changed.find(was), was.size(), now);
    faults.clear();
    read_huggingface_config(changed, "config.json", faults);
    return text_of(faults);
  };
  EXPECT_NE(with("\"n_shared_experts\": 1", "\"n_shared_experts\": 0").find("n_shared_experts: is not a number of shared experts"),
            std::string::npos);
  EXPECT_NE(with("\"use_qk_norm\"", "\"use_kq_norm\"").find("use_kq_norm: is not a known key"), std::string::npos);
}

// As in config.json of MiniMax-M2 but for its quantization.
TEST(ModelSource, ReadsAMiniMaxM2) {
  const std::string text = R"({"architectures": ["MiniMaxM2ForCausalLM"], "attention_dropout": 0.0, "attn_type_list": [1, 1],
    "auto_map": {"AutoConfig": "configuration_minimax_m2.MiniMaxM2Config", "AutoModelForCausalLM": "modeling_minimax_m2.MiniMaxM2ForCausalLM"},
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 1536, "max_position_embeddings": 196608,
    "mlp_intermediate_size": 8192, "model_type": "minimax_m2", "mtp_transformer_layers": 1, "num_attention_heads": 48,
    "num_experts_per_tok": 8, "num_hidden_layers": 2, "num_key_value_heads": 8, "num_local_experts": 256, "num_mtp_modules": 3,
    "qk_norm_type": "per_layer", "rms_norm_eps": 1e-06, "rope_theta": 5000000, "rotary_dim": 64, "scoring_func": "sigmoid",
    "shared_intermediate_size": 0, "sliding_window": null, "tie_word_embeddings": false, "use_mtp": true, "use_qk_norm": true,
    "use_routing_bias": true, "vocab_size": 200064})";
  std::vector<Fault> faults;
  const ModelSource source = read_huggingface_config(text, "config.json", faults);
  EXPECT_EQ(text_of(faults), "");
  const ModelKeys& m = source.model;
  EXPECT_TRUE(m.qk_norm && m.wide_qk_norm && m.normalize_top_k);
  EXPECT_EQ(m.rotary_fraction, 0.5);
  EXPECT_EQ(m.expert_ff_width, 1536);
  EXPECT_EQ(m.shared_ff_width, 0);
  EXPECT_EQ(m.router_scores, RouterScores::sigmoid);
  EXPECT_EQ(m.router_balance, RouterBalance::bias);
  EXPECT_EQ(family_of(m), family_named("minimax_m2"));
  ASSERT_EQ(source.notes.size(), 1u);
  EXPECT_NE(source.notes[0].find("num_mtp_modules"), std::string::npos) << source.notes[0];
}

TEST(ModelSource, ReadsADotsLlm1) {
  std::vector<Fault> faults;
  const auto read = [&](const std::string& more) {
    return read_huggingface_config(R"({"model_type": "dots1", "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 4,
      "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 152064, "rms_norm_eps": 1e-05, "n_routed_experts": 128,
      "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_intermediate_size": 1408, "norm_topk_prob": true,
      "routed_scaling_factor": 2.5, "rope_theta": 10000000, "n_group": null, "topk_group": null, "scoring_func": "noaux_tc", )" +
                                       more + "}",
                                   "config.json", faults);
  };
  const ModelKeys m = read(R"("sliding_window": null)").model;
  EXPECT_EQ(text_of(faults), "");
  EXPECT_TRUE(m.qk_norm && !m.wide_qk_norm && m.normalize_top_k && !m.shared_gate);
  EXPECT_EQ(m.head_dim, 128);
  EXPECT_EQ(m.shared_ff_width, 2816);
  EXPECT_EQ(m.dense_layers, 1);
  EXPECT_EQ(m.router_scale, 2.5);
  EXPECT_EQ(m.window, 0);
  EXPECT_EQ(family_of(m), family_named("dots1")) << "though a GLM-4.5 of its keys would be the same";
  EXPECT_EQ(describe_layers(read(R"("max_window_layers": 3, "sliding_window": 9)").model),
            "3 that see all tokens; 1 with a window of 9 tokens");
  EXPECT_EQ(text_of(faults), "");
}

// Keys as in config.json of Granite 4.0 micro; of another one without positions and with experts as its class saves them.
TEST(ModelSource, ReadsAGranite4OfAttention) {
  const std::string usual =
      R"({"architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "attention_bias": false,
    "attention_dropout": 0.0, "attention_multiplier": 0.015625, "bos_token_id": 100257, "embedding_multiplier": 12, "eos_token_id": 100257,
    "hidden_act": "silu", "hidden_size": 2560, "init_method": "mup", "initializer_range": 0.1, "intermediate_size": 8192,
    "layer_types": ["attention", "attention"], "logits_scaling": 10, "mamba_chunk_size": 256, "mamba_conv_bias": true, "mamba_d_conv": 4,
    "mamba_d_head": 64, "mamba_d_state": 256, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 80, "mamba_proj_bias": false,
    "max_position_embeddings": 131072, "normalization_function": "rmsnorm", "num_attention_heads": 40, "num_hidden_layers": 2,
    "num_key_value_heads": 8, "output_router_logits": false, "pad_token_id": 100256, "residual_multiplier": 0.22, "rms_norm_eps": 1e-05,
    "rope_scaling": null, "rope_theta": 10000000, "tie_word_embeddings": true, "vocab_size": 100352, "router_aux_loss_coef": 0.01, )";
  std::vector<Fault> faults;
  const ModelSource micro = read_huggingface_config(
      usual + R"("num_experts_per_tok": 0, "num_local_experts": 0, "position_embedding_type": "rope", "shared_intermediate_size": 8192})",
      "config.json", faults);
  EXPECT_EQ(text_of(faults), "");
  const ModelKeys& m = micro.model;
  EXPECT_TRUE(m.experts == 0 && m.shared_ff_width == 0 && m.shared_gate && m.expert_ff_width == 0);
  EXPECT_EQ(m.ff_width, 8192);
  EXPECT_EQ(m.positions, PositionMode::rope);
  EXPECT_EQ(m.rope_theta, 1e7);
  EXPECT_EQ(m.residual_scale, 0.22);
  EXPECT_EQ(family_of(m), family_named("granite")) << "which it is but for names";
  const ModelSource tiny =
      read_huggingface_config(usual + R"("num_experts_per_tok": 6, "num_local_experts": 64, "time_step_limit": [0.0, 1e9],
      "position_embedding_type": "nope", "shared_intermediate_size": 1024})",
                              "config.json", faults);
  EXPECT_EQ(text_of(faults), "");
  EXPECT_EQ(tiny.model.experts, 64);
  EXPECT_EQ(tiny.model.expert_ff_width, 8192);
  EXPECT_EQ(tiny.model.shared_ff_width, 1024);
  EXPECT_FALSE(tiny.model.shared_gate);
  EXPECT_EQ(tiny.model.positions, PositionMode::none);
  EXPECT_EQ(tiny.model.rope_theta, ModelKeys{}.rope_theta) << "which no layer reads";
  EXPECT_EQ(family_of(tiny.model), family_named("granitemoehybrid"));
}

TEST(ModelSource, RefusesWhatADeckCannotSay) {
  std::vector<Fault> faults;
  read_huggingface_config("{\"model_type\": \"gpt_neo\"}", "config.json", faults);
  std::string types;
  for (const Family& family : families()) types += fmt::format("{}{}", types.empty() ? "" : ", ", family.type);
  EXPECT_EQ(text_of(faults),
            fmt::format("config.json:1:16: model_type: \"gpt_neo\" is not a model that a deck can describe; {} are\n", types));
  faults.clear();
  read_huggingface_config(
      "{\"model_type\": \"mistral\", \"hidden_size\": \"wide\",\n \"intermediate_size\": 1, \"num_hidden_layers\": 1, "
      "\"num_attention_heads\": 1,\n"
      " \"sliding_window\": 4096, \"hidden_act\": \"relu\", \"mlp_bias\": true, \"attention_bias\": true,\n"
      " \"rope_scaling\": {\"type\": \"ntk\"}}",
      "config.json", faults);
  EXPECT_EQ(text_of(faults),
            "config.json:1:42: hidden_size: expected an integer, got \"wide\"\n"
            "config.json:3:40: hidden_act: \"relu\" is not in this version; \"silu\", \"gelu\" and \"gelu_pytorch_tanh\" are\n"
            "config.json: vocab_size: is missing\n"
            "config.json:4:27: type: \"ntk\" is not in this version; \"default\", \"llama3\", \"linear\", \"dynamic\", \"yarn\" and "
            "\"longrope\" are\n"
            "config.json:3:84: attention_bias: a bias on the attention's output is not in this version\n"
            "config.json:3:60: mlp_bias: biases in the feed-forward block of this model_type are not in this version\n");
  faults.clear();
  read_model("no/such/config.json", faults);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].message.find("No such file"), std::string::npos);
}

}  // namespace
}  // namespace tessera::model_source_test
