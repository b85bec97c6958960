// The table of tensors and config.json against what transformers itself writes for the same models.
#include "model/table/parameters.hpp"

#include <gtest/gtest.h>

#include <fmt/ranges.h>

#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include "base/json.hpp"

#include "base/check.hpp"
#include "deck/import/model_source.hpp"
#include "families/write_config.hpp"
#include "model/table/huggingface.hpp"
#include "model/table/layout.hpp"
#include "random_models.hpp"

namespace tessera::parameters_test {
namespace {

struct Export {
  std::string name;
  std::vector<std::string> overrides;
};

void PrintTo(const Export& e, std::ostream* out) { *out << e.name; }

/// The models of validation/parity/models.py whose exports are stored.
const std::vector<Export> exports = {
    {"tied", {"model.ff_width=64", "model.tied=true"}},
    {"gqa4", {"model.heads=8", "model.kv_heads=2"}},
    {"rope_llama3",
     {"model.heads=2", "model.kv_heads=1", "model.head_dim=16", "model.rope_scaling=llama3", "model.rope_original_context=32"}},
    {"qk_norm",
     {"model.kv_heads=2", "model.head_dim=12", "model.qk_norm=true", "model.norm_eps=1e-6", "model.rope_theta=1000000.0",
      "model.tied=true"}},
    {"qkv_bias", {"model.kv_heads=2", "model.qkv_bias=true", "model.norm_eps=1e-6", "model.rope_theta=1000000.0", "model.vocab=131"}},
    {"mixtral", {"model.kv_heads=2", "model.ff_width=24", "model.vocab=64", "model.experts=4", "model.expert_ff_width=24"}},
    {"qwen_moe",
     {"model.kv_heads=2", "model.qkv_bias=true", "model.norm_eps=1e-6", "model.vocab=64", "model.experts=6", "model.expert_ff_width=16",
      "model.shared_ff_width=40", "model.normalize_top_k=false"}},
    {"gemma2",
     {"model.kv_heads=2", "model.vocab=64", "model.tied=true", "model.norm_eps=1e-6", "model.norm_placement=both",
      "model.norm_form=one_plus_weight", "model.activation=gelu_tanh", "model.embedding_scale=sqrt_width", "model.attention_scale=0.25",
      "model.attention_softcap=3", "model.logit_softcap=2", "model.pattern=LG",
      R"(model.kinds=[{ name = "L", window = 6 }, { name = "G" }])"}},
    {"gemma3",
     {"model.kv_heads=1", "model.vocab=64", "model.tied=true", "model.layers=3", "model.norm_eps=1e-6", "model.qk_norm=true",
      "model.norm_placement=both", "model.norm_form=one_plus_weight", "model.activation=gelu_tanh", "model.embedding_scale=sqrt_width",
      "model.rope_theta=1e6", "model.rope_scaling=linear", "model.rope_factor=8", "model.pattern=LLG",
      R"(model.kinds=[{ name = "L", window = 6, rope_theta = 10000.0, rope_scaling = "none" }, { name = "G" }])"}},
    {"olmo3",
     {"model.kv_heads=2", "model.vocab=64", "model.layers=3", "model.qk_norm=true", "model.wide_qk_norm=true", "model.norm_placement=post",
      "model.rope_theta=5e5", "model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_original_context=8", "model.pattern=LG",
      R"(model.kinds=[{ name = "L", window = 6, rope_scaling = "none" }, { name = "G" }])"}},
    {"granite",
     {"model.kv_heads=2", "model.vocab=64", "model.tied=true", "model.activation=gelu", "model.embedding_scale=3",
      "model.residual_scale=0.5", "model.attention_scale=0.2", "model.logit_scale=0.5"}},
    {"gpt_oss",
     {"model.kv_heads=2", "model.vocab=64", "model.qkv_bias=true", "model.attention_out_bias=true", "model.attention_sinks=true",
      "model.activation=clamped_silu", "model.gate_limit=2", "model.ff_width=16", "model.experts=4", "model.expert_ff_width=16",
      "model.expert_bias=true", "model.rope_theta=150000.0", "model.rope_scaling=yarn", "model.rope_factor=4",
      "model.rope_original_context=8", "model.rope_truncate=false", "model.pattern=LG",
      R"(model.kinds=[{ name = "L", window = 6 }, { name = "G" }])"}},
    {"starcoder2",
     {"model.kv_heads=2", "model.vocab=64", "model.tied=true", "model.qkv_bias=true", "model.attention_out_bias=true",
      "model.mlp_bias=true", "model.gated=false", "model.norm_form=layer_norm", "model.activation=gelu_tanh", "model.window=7",
      "model.init_std=0.018042"}},
    {"apertus",
     {"model.kv_heads=2", "model.vocab=64", "model.qk_norm=true", "model.gated=false", "model.activation=xielu", "model.rope_theta=12e6",
      "model.rope_scaling=llama3", "model.rope_factor=8", "model.rope_original_context=64"}},
    {"gpt2",
     {"model.vocab=64", "model.ff_width=96", "model.tied=true", "model.qkv_bias=true", "model.attention_out_bias=true",
      "model.mlp_bias=true", "model.gated=false", "model.norm_form=layer_norm", "model.activation=gelu_tanh", "model.positions=none",
      "model.learned_positions=40", "batch.sequence_length=40"}},
    {"cohere2",
     {"model.kv_heads=2", "model.vocab=64", "model.layers=3", "model.tied=true", "model.norm_placement=parallel",
      "model.norm_form=layer_norm_no_bias", "model.rope_pairs=neighbours", "model.logit_scale=0.5", "model.pattern=LG",
      R"(model.kinds=[{ name = "L", window = 6 }, { name = "G", positions = "none" }])"}},
    {"glm4_moe",
     {"model.kv_heads=2", "model.vocab=64", "model.qk_norm=true", "model.qkv_bias=true", "model.rotary_fraction=0.5", "model.experts=8",
      "model.expert_ff_width=12", "model.shared_ff_width=24", "model.shared_gate=false", "model.dense_layers=1",
      "model.router_scores=sigmoid", "model.router_scale=2.5", "model.expert_groups=4", "model.groups_per_token=2",
      "model.router_balance=bias"}},
    {"granitemoe",
     {"model.kv_heads=2", "model.vocab=64", "model.tied=true", "model.ff_width=16", "model.experts=6", "model.expert_ff_width=16",
      "model.embedding_scale=3", "model.residual_scale=0.5", "model.attention_scale=0.3535533905932738", "model.logit_scale=0.5"}},
    {"granitemoeshared",
     {"model.kv_heads=2", "model.vocab=64", "model.tied=true", "model.ff_width=16", "model.experts=6", "model.expert_ff_width=16",
      "model.shared_ff_width=20", "model.shared_gate=false", "model.embedding_scale=3", "model.residual_scale=0.5",
      "model.attention_scale=0.3535533905932738", "model.logit_scale=0.5"}},
    {"granite4",
     {"model.kv_heads=2", "model.vocab=64", "model.layers=1", "model.tied=true", "model.ff_width=12", "model.experts=4",
      "model.expert_ff_width=12", "model.shared_ff_width=20", "model.shared_gate=false", "model.positions=none", "model.embedding_scale=3",
      "model.residual_scale=0.5", "model.attention_scale=0.2", "model.logit_scale=0.5"}},
    {"granite4_dense",
     {"model.kv_heads=2", "model.vocab=64", "model.tied=true", "model.positions=none", "model.embedding_scale=3",
      "model.residual_scale=0.5", "model.attention_scale=0.2", "model.logit_scale=0.5"}},
    {"dots1",
     {"model.kv_heads=2", "model.vocab=64", "model.layers=3", "model.qk_norm=true", "model.experts=4", "model.expert_ff_width=12",
      "model.shared_ff_width=24", "model.shared_gate=false", "model.dense_layers=1", "model.router_scores=sigmoid",
      "model.router_scale=2.5", "model.router_balance=bias", "model.pattern=GGL",
      R"(model.kinds=[{ name = "G" }, { name = "L", window = 6 }])"}},
    {"minimax_m2",
     {"model.norm_eps=1e-6", "model.kv_heads=2", "model.vocab=64", "model.layers=1", "model.qk_norm=true", "model.wide_qk_norm=true",
      "model.rotary_fraction=0.5", "model.ff_width=12", "model.experts=6", "model.expert_ff_width=12", "model.router_scores=sigmoid",
      "model.router_balance=bias"}},
    {"qwen_sparse",
     {"model.kv_heads=2", "model.vocab=64", "model.layers=3", "model.qk_norm=true", "model.experts=4", "model.expert_ff_width=16",
      "model.pattern=DG", R"(model.kinds=[{ name = "D", experts = false }, { name = "G" }])"}},
};

Deck deck_of(const Export& e) {
  std::vector<std::string> overrides{"model.vocab=96", "model.kv_heads=4", "model.init_std=0.02", "batch.sequence_length=8192"};
  overrides.insert(overrides.end(), e.overrides.begin(), e.overrides.end());
  return test::tiny_deck(overrides);
}

class AgainstTransformers : public testing::TestWithParam<Export> {};

TEST_P(AgainstTransformers, NamesAndShapes) {
  std::set<std::string> ours, theirs;
  const Deck deck = deck_of(GetParam());
  for (const ExportTensor& tensor : huggingface_tensors(deck, parameter_table(deck.model)))
    ours.insert(fmt::format("{} F32{}{}", tensor.name, tensor.shape.dims.empty() ? "" : " ", fmt::join(tensor.shape.dims, "x")));
  std::ifstream list(std::string(TESSERA_EXPORTS) + "/" + GetParam().name + ".txt");
  for (std::string line; std::getline(list, line);) theirs.insert(line);
  ASSERT_FALSE(theirs.empty()) << "the stored list is missing";
  EXPECT_EQ(ours, theirs);
}

/// transformers 5 writes rope_parameters, version 4 wrote rope_theta and rope_scaling: one form of both.
Json rope_of(const Json& config) {
  if (config.contains("rope_parameters") && config["rope_parameters"].contains("full_attention")) return config["rope_parameters"];
  if (config["model_type"] == "gpt2") return nullptr;
  Json rope = config.contains("rope_parameters") ? config["rope_parameters"] : config["rope_scaling"];
  if (rope.is_null()) rope = {{"rope_type", "default"}};
  for (const char* beside : {"rope_theta", "partial_rotary_factor"})
    if (config.contains(beside)) rope[beside] = config[beside];
  return rope;
}

TEST_P(AgainstTransformers, Configuration) {
  const Json ours = Json::parse(huggingface_config(deck_of(GetParam()), DType::f32));
  std::ifstream file(std::string(TESSERA_EXPORTS) + "/" + GetParam().name + ".json");
  const Json theirs = Json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  EXPECT_EQ(rope_of(ours), rope_of(theirs));
  EXPECT_EQ(ours.at("torch_dtype"), theirs.at("dtype"));
  // What has no bearing on the numbers: ids of tokens, the cache, versions, windows that are switched off.
  const std::set<std::string> aside = {"rope_parameters",
                                       "dtype",
                                       "bos_token_id",
                                       "eos_token_id",
                                       "pad_token_id",
                                       "transformers_version",
                                       "pretraining_tp",
                                       "max_window_layers",
                                       "layer_types",
                                       "sliding_window",
                                       "use_sliding_window",
                                       "router_aux_loss_coef",
                                       "_sliding_window_pattern",
                                       "time_step_limit",
                                       "add_cross_attention",
                                       "summary_activation",
                                       "summary_first_dropout",
                                       "summary_proj_to_labels",
                                       "summary_type",
                                       "summary_use_proj"};  // of a loss that is of all layers together
  for (const auto& [key, value] : theirs.items()) {
    if (aside.contains(key) || key.starts_with("mamba_")) continue;
    const bool of_mixtral = key == "num_local_experts" && ours.contains("num_experts");  // of a Qwen3-MoE of transformers 5
    const std::string mine = of_mixtral ? "num_experts" : key;
    ASSERT_TRUE(ours.contains(mine)) << key;
    EXPECT_EQ(ours[mine], value) << key;
  }
  if (theirs.contains("use_sliding_window")) {
    EXPECT_EQ(theirs["use_sliding_window"], false);
  }
}

// Ours and theirs say the model that was exported.
TEST_P(AgainstTransformers, ConfigurationReadsBackAsTheModel) {
  const Deck deck = deck_of(GetParam());
  std::ifstream file(std::string(TESSERA_EXPORTS) + "/" + GetParam().name + ".json");
  const std::string theirs{std::istreambuf_iterator<char>(file), {}};
  for (const std::string& text : {huggingface_config(deck, DType::bf16), theirs}) {
    std::vector<Fault> faults;
    const ModelSource source = read_huggingface_config(text, "config.json", faults);
    for (const Fault& fault : faults) ADD_FAILURE() << fault.str();
    EXPECT_EQ(model_differences(deck.model, source), std::vector<std::string>());
    EXPECT_EQ(source.context, deck.model.learned_positions > 0 ? deck.model.learned_positions : 8192);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, AgainstTransformers, testing::ValuesIn(exports), [](const auto& info) { return info.param.name; });

TEST(HuggingfaceConfig, SaysItsType) {
  EXPECT_EQ(Json::parse(huggingface_config(test::tiny_deck(), DType::bf16)).at("torch_dtype"), "bfloat16");
}

TEST(HuggingfaceConfig, NormsAndBiasesTogetherAreAQwen3WithABiasOfTheOutputThatAddsNothing) {
  const Deck deck = test::tiny_deck({"model.qk_norm=true", "model.qkv_bias=true"});
  const Json config = Json::parse(huggingface_config(deck, DType::f32));
  EXPECT_EQ(config.at("model_type"), "qwen3");
  EXPECT_EQ(config.at("attention_bias"), true);
  int output_biases = 0;
  for (const ExportTensor& tensor : huggingface_tensors(deck, parameter_table(deck.model)))
    if (tensor.name.ends_with("o_proj.bias")) {
      EXPECT_EQ(tensor.shape, Shape({deck.model.width}));
      EXPECT_EQ(tensor.parts.size(), 0u) << "zeros";
      ++output_biases;
    }
  EXPECT_EQ(output_biases, deck.model.layers);
}

TEST(ParameterTable, NamesAreUniqueInBothWorlds) {
  test::Random random(1);
  for (int trial = 0; trial < 50; ++trial) {
    const auto table = parameter_table(test::random_model(random));
    std::set<std::string> ours, theirs;
    for (const Parameter& p : table) ours.insert(p.name), theirs.insert(p.export_name);
    EXPECT_EQ(ours.size(), table.size());
    EXPECT_EQ(theirs.size(), table.size());
  }
}

TEST(ParameterTable, OnlyMatricesDecayAndOnlyThey) {
  for (const Parameter& p : parameter_table(test::tiny_deck({"model.qk_norm=true", "model.qkv_bias=true"}).model)) {
    EXPECT_EQ(p.decay, p.shape.dims.size() == 2) << p.name;
    EXPECT_EQ(p.init == Init::normal, p.shape.dims.size() == 2) << p.name;
    if (p.init == Init::normal) {
      EXPECT_GT(p.std, 0) << p.name;
    }
    if (p.name.ends_with("norm")) {
      EXPECT_EQ(p.init, Init::ones) << p.name;
    }
    if (p.joined) {
      EXPECT_FALSE(p.name.ends_with("wq") || p.name.ends_with("norm")) << p.name;
    }
    EXPECT_LT(p.tp_dim, static_cast<int>(p.shape.dims.size())) << p.name;
  }
}

TEST(HuggingfaceConfig, NormsWithoutASharedExpertAreAQwen3Moe) {
  const Deck deck = test::tiny_deck({"model.experts=4", "model.qk_norm=true", "model.normalize_top_k=false"});
  const Json config = Json::parse(huggingface_config(deck, DType::f32));
  EXPECT_EQ(config.at("model_type"), "qwen3_moe");
  EXPECT_EQ(config.at("norm_topk_prob"), false);
  EXPECT_EQ(config.at("moe_intermediate_size"), deck.model.ff_width);
}

TEST(HuggingfaceConfig, RefusesExpertsOfNoClass) {
  for (const std::vector<std::string>& overrides :
       {std::vector<std::string>{"model.normalize_top_k=false"},
        {"model.shared_ff_width=8", "model.qk_norm=true"},
        {"model.router_balance=bias"},
        {"model.router_scores=sigmoid"},
        {"model.router_scores=sigmoid", "model.router_balance=bias"},
        {"model.router_scale=2"},
        {"model.dense_layers=1"},
        {"model.pattern=DE", R"(model.kinds=[{ name = "D", experts = false }, { name = "E" }])"},
        {"model.shared_ff_width=8", "model.shared_gate=false", "model.normalize_top_k=false"},
        {"model.qkv_bias=true"}}) {
    std::vector<std::string> all{"model.experts=4"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const Deck deck = test::tiny_deck(all);
    EXPECT_THROW(huggingface_tensors(deck, parameter_table(deck.model)), Error) << overrides.front();
  }
}

TEST(ParameterTable, TheFirstLayersMayHaveNoExperts) {
  const ModelKeys m = test::tiny_deck({"model.layers=3", "model.experts=4", "model.expert_ff_width=20", "model.dense_layers=2",
                                       "model.shared_ff_width=8", "model.shared_gate=false", "model.router_balance=bias"})
                          .model;
  std::vector<std::string> units, biases;
  const std::vector<Parameter> table = parameter_table(m);
  for (const Unit& unit : make_layout(table, 1, 0).units) units.push_back(unit.name);
  EXPECT_EQ(units, (std::vector<std::string>{"embedding", "layers.0", "layers.1", "layers.2", "layers.2.experts", "head", "untrained"}));
  for (const Parameter& p : table) {
    EXPECT_EQ(p.name.find(".moe.") != p.name.npos, p.layer == 2 && p.name.find("attention") == p.name.npos) << p.name;
    EXPECT_EQ(p.name.find("shared_gate"), p.name.npos);
    if (!p.trained) biases.push_back(p.name);
    if (p.name == "layers.1.mlp.w_up") {
      EXPECT_EQ(p.shape.dims, (std::vector<std::int64_t>{m.ff_width, m.width}));
      EXPECT_EQ(p.tp_dim, 0);
    }
  }
  EXPECT_EQ(biases, std::vector<std::string>{"layers.2.moe.router_bias"});
}

TEST(ParameterTable, LayersOfAKindMayHaveNoExperts) {
  const ModelKeys m = test::tiny_deck({"model.layers=4", "model.experts=2", "model.expert_ff_width=20", "model.pattern=DE",
                                       R"(model.kinds=[{ name = "D", experts = false }, { name = "E" }])"})
                          .model;
  std::vector<std::string> units;
  for (const Unit& unit : make_layout(parameter_table(m), 1, 0).units) units.push_back(unit.name);
  EXPECT_EQ(units, (std::vector<std::string>{"embedding", "layers.0", "layers.1", "layers.1.experts", "layers.2", "layers.3",
                                             "layers.3.experts", "head"}));
  for (const Parameter& p : parameter_table(m)) {
    EXPECT_FALSE(p.name.find(".moe.") != p.name.npos && p.layer % 2 == 0) << p.name;
    EXPECT_FALSE(p.name.find(".mlp.") != p.name.npos && p.layer % 2 == 1) << p.name;
  }
}

TEST(ParameterTable, ExpertsAreAUnitOfTheirOwnInWhichProductsFindTheirMatrices) {
  const ModelKeys m = test::tiny_deck({"model.experts=3", "model.expert_ff_width=20", "model.shared_ff_width=10"}).model;
  const Layout layout = make_layout(parameter_table(m), 1, 0);
  std::vector<std::string> units;
  for (const Unit& unit : layout.units) units.push_back(unit.name);
  EXPECT_EQ(units, (std::vector<std::string>{"embedding", "layers.0", "layers.0.experts", "layers.1", "layers.1.experts", "head"}));
  const auto find = [&](const char* tensor) { return layout.find(std::string("layers.1.moe.") + tensor); };
  EXPECT_EQ(find("experts.0.w_gate").elements, 3 * 2 * 20 * m.width);
  EXPECT_EQ(find("experts.0.w_down").elements, 3 * 20 * m.width);
  EXPECT_EQ(find("router").elements, 4 * m.width) << "with the gate of the shared expert";
  EXPECT_EQ(find("experts.1.w_gate").offset - find("experts.0.w_gate").offset, 2 * 20 * m.width);
  EXPECT_EQ(find("experts.2.w_down").unit, 4);
  EXPECT_EQ(find("shared.w_gate").unit, 3);
}

TEST(ParameterTable, Mixtral8x22BHas141BillionParameters) {
  const ModelKeys m = test::tiny_deck({"model.layers=56", "model.width=6144", "model.heads=48", "model.kv_heads=8", "model.head_dim=128",
                                       "model.ff_width=16384", "model.vocab=32768", "model.experts=8"})
                          .model;
  // 2 x 32768 x 6144 + 6144 + 56 x (2 x 6144 + 6144 x 128 x (48 + 2 x 8 + 48) + 8 x 6144 + 8 x 3 x 6144 x 16384)
  EXPECT_EQ(parameter_count(parameter_table(m)),
            2LL * 32768 * 6144 + 6144 + 56LL * (2 * 6144 + 6144LL * 128 * 112 + 8 * 6144 + 24LL * 6144 * 16384));
  EXPECT_NEAR(static_cast<double>(parameter_count(parameter_table(m))), 140.6e9, 0.1e9);
}

TEST(ParameterTable, CountsByHand) {
  // GPT-2-124M-sized Llama: 2 x 50257 x 768 + 768 + 12 x (2 x 768 + 4 x 768^2 + 3 x 768 x 2048)
  const ModelKeys m = test::tiny_deck({"model.layers=12", "model.width=768", "model.heads=12", "model.kv_heads=12", "model.head_dim=64",
                                       "model.ff_width=2048", "model.vocab=50257"})
                          .model;
  EXPECT_EQ(parameter_count(parameter_table(m)), 162148608);
}

}  // namespace
}  // namespace tessera::parameters_test
