// Adapters: which matrices have them, their rows of the table, and the calls that texts make for them.
#include "model/table/lora.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/check.hpp"
#include "model/record/leave_frozen.hpp"
#include "model/record/segment.hpp"
#include "model/table/frozen.hpp"
#include "random_models.hpp"

namespace tessera::lora_test {
namespace {

LoraKeys lora_of(std::int64_t rank, double alpha, std::vector<std::string> targets = {}) {
  LoraKeys lora;
  lora.rank = rank, lora.alpha = alpha, lora.targets = std::move(targets);
  return lora;
}

ModelKeys adapted_model(std::vector<std::string> targets, const std::vector<std::string>& overrides = {}) {
  ModelKeys model = test::tiny_deck(overrides, 1).model;
  model.lora = lora_of(4, 8, std::move(targets));
  return model;
}

std::string fault_of(const ModelKeys& model) {
  try {
    parameter_table(model);
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::usage);
    return error.what();
  }
  return "";
}

/// The tensors that have adapters.
std::set<std::string> adapted(const ModelKeys& model) {
  std::set<std::string> names;
  for (const Parameter& p : parameter_table(model))
    if (p.adapter) names.insert(p.name.substr(0, p.name.rfind('.')));
  return names;
}

std::vector<std::string> names_of(const std::vector<Call>& calls, std::string_view part) {
  std::vector<std::string> names;
  for (const Call& call : calls)
    if (call.name.find(part) != call.name.npos) names.push_back(call.name);
  return names;
}

TEST(Lora, TargetsAreNamesOfEitherKindOrPatterns) {
  using Names = std::set<std::string>;
  EXPECT_EQ(adapted(adapted_model({"wq", "down_proj"})),
            (Names{"layers.0.attention.wq", "layers.0.mlp.w_down", "layers.1.attention.wq", "layers.1.mlp.w_down"}));
  EXPECT_EQ(adapted(adapted_model({"attention.*"})), adapted(adapted_model({"q_proj", "k_proj", "v_proj", "o_proj"})));
  EXPECT_EQ(adapted(adapted_model({"layers.1.*.w_up"})), Names{"layers.1.mlp.w_up"});
  for (const std::vector<std::string>& all : {std::vector<std::string>{}, {"all-linear"}})
    EXPECT_EQ(adapted(adapted_model(all)).size(), 14u);
  // Whole names of modules, and what follows one of their dots, as PEFT's target_modules.
  for (const char* q : {"model.layers.1.self_attn.q_proj", "layers.1.self_attn.q_proj", "1.self_attn.q_proj", "*.1.self_attn.q_proj"})
    EXPECT_EQ(adapted(adapted_model({q})), Names{"layers.1.attention.wq"}) << q;
  EXPECT_EQ(adapted(adapted_model({"model.layers.*.mlp.down_proj"})), adapted(adapted_model({"w_down"})));
  EXPECT_EQ(adapted(adapted_model({"self_attn.o_proj"})), adapted(adapted_model({"wo"})));
  EXPECT_EQ(adapted(adapted_model({"transformer.h.0.attn.c_attn"})),
            adapted(adapted_model({"layers.0.attention.wq", "layers.0.attention.wk", "layers.0.attention.wv"})))
      << "a module of another family's names";
  EXPECT_NE(fault_of(adapted_model({"attn.q_proj"})).find("\"attn.q_proj\" is not a matrix"), std::string::npos) << "words are whole";
  EXPECT_NE(fault_of(adapted_model({"model.layers.9.self_attn.q_proj"})).find("is not a matrix"), std::string::npos)
      << "there are two layers";
  const std::string none = fault_of(adapted_model({"wq", "w_gat"}));
  EXPECT_NE(none.find("lora.targets: \"w_gat\" is not a matrix"), none.npos) << none;
  EXPECT_NE(fault_of(adapted_model({"embedding.*"})).find("\"embedding.*\""), std::string::npos);
}

TEST(Lora, ExpertsHaveAdaptersWhereTargetsNameThem) {
  const std::vector<std::string> mixture = {"model.experts=4", "model.experts_per_token=2", "model.expert_ff_width=24",
                                            "model.shared_ff_width=16"};
  for (const Parameter& p : parameter_table(adapted_model({}, mixture)))
    EXPECT_TRUE(!p.adapter || p.name.find(".attention.") != p.name.npos) << p.name;
  EXPECT_EQ(adapted(adapted_model({"all-linear"}, mixture)).size(), 2 * (4 + 3 + 4 * 3u));
  EXPECT_EQ(adapted(adapted_model({"shared.*"}, mixture)).size(), 2 * 3u);
  EXPECT_EQ(adapted(adapted_model({"w1", "w3"}, mixture)), adapted(adapted_model({"experts.w_gate", "experts.w_up"}, mixture)));
  EXPECT_EQ(adapted(adapted_model({"gate_proj"}, mixture)).size(), 2 * (1 + 4u)) << "as PEFT has it: the shared expert's too";
  const std::string some = fault_of(adapted_model({"layers.1.moe.experts.2.*"}, mixture));
  EXPECT_NE(some.find("all experts of a layer have adapters, or none"), some.npos) << some;
}

std::set<std::string> trained_whole(const ModelKeys& model) {
  std::set<std::string> names;
  for (const Parameter& p : parameter_table(model)) {
    if (p.whole) names.insert(p.name);
    EXPECT_EQ(p.frozen, !p.adapter && !p.whole) << p.name;
  }
  return names;
}

TEST(Lora, ModulesToSaveAreEndsOfNamesOrPatterns) {
  using Names = std::set<std::string>;
  const auto saved = [](std::vector<std::string> modules, const std::vector<std::string>& overrides = {},
                        std::vector<std::string> targets = {"wq"}) {
    ModelKeys model = adapted_model(std::move(targets), overrides);
    model.lora.modules_to_save = std::move(modules);
    return model;
  };
  EXPECT_EQ(trained_whole(saved({"lm_head"})), Names{"head.weight"});
  EXPECT_EQ(trained_whole(saved({"lm_head"}, {"model.head_bias=true"})), (Names{"head.weight", "head.bias"}));
  EXPECT_EQ(trained_whole(saved({"embed_tokens", "model.norm"})), (Names{"embedding.weight", "head.norm"}));
  EXPECT_EQ(trained_whole(saved({"head.*"})), (Names{"head.norm", "head.weight"}));
  EXPECT_EQ(trained_whole(saved({"layers.1.post_attention_layernorm"})), Names{"layers.1.mlp.norm"});
  EXPECT_EQ(trained_whole(saved({"norm"})).size(), 5u) << "wherever the end begins, as PEFT has it";
  EXPECT_EQ(trained_whole(saved({"layers.0.mlp"})), (Names{"layers.0.mlp.w_gate", "layers.0.mlp.w_up", "layers.0.mlp.w_down"}))
      << "a module that holds others";
  EXPECT_EQ(trained_whole(saved({"embed_tokens"}, {"model.tied=true"})), Names{"embedding.weight"});
  EXPECT_NE(fault_of(saved({"lm_head"}, {"model.tied=true"})).find("\"embed_tokens\""), std::string::npos);
  EXPECT_NE(fault_of(saved({"lm_haed"})).find("no module of this model is called \"lm_haed\"; the nearest tensors are"), std::string::npos);
  EXPECT_NE(fault_of(saved({"mlp"}, {}, {"w_up"})).find("layers.0.mlp.w_up, which has an adapter"), std::string::npos);
  EXPECT_NE(fault_of(saved({"k_proj"}, {}, {"wo"}))
                .find("lora.modules_to_save: one product reads layers.0.attention.wq and layers.0.attention.wk"),
            std::string::npos);
  EXPECT_NE(fault_of(saved({"norm"}, {"model.freeze=[\"head.norm\"]"})).find("which lora.modules_to_save trains"), std::string::npos);
  const std::vector<Parameter> table = parameter_table(saved({"norm", "lm_head"}));
  EXPECT_EQ(
      peft_modules_to_save(table),
      (std::vector<std::string>{"model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm",
                                "model.layers.1.input_layernorm", "model.layers.1.post_attention_layernorm", "model.norm", "lm_head"}));
  EXPECT_EQ(peft_name(table.back()), "base_model.model.lm_head.weight");
}

TEST(Lora, DropoutIsNotOfExperts) {
  ModelKeys model = adapted_model({"all-linear"}, {"model.experts=2"});
  EXPECT_EQ(fault_of(model), "");
  model.lora.dropout = 0.1;
  EXPECT_NE(fault_of(model).find("adapters of experts have no dropout"), std::string::npos);
  model.lora.targets = {"wq"};
  EXPECT_EQ(fault_of(model), "");
}

TEST(Lora, MatricesOfAllExpertsAreNeighbours) {
  const ModelKeys model = adapted_model({"experts.*", "wq"}, {"model.experts=3", "model.expert_ff_width=24"});
  std::vector<std::string> names;
  for (const Parameter& p : parameter_table(model)) {
    if (!p.adapter || p.layer != 0) continue;
    names.push_back(p.name.substr(std::string("layers.0.").size()));
    EXPECT_EQ(p.joined, p.expert > 0) << p.name;
    EXPECT_EQ(p.part, p.expert < 0 ? Part::layer : Part::experts) << p.name;
  }
  std::vector<std::string> expected = {"attention.wq.lora_a", "attention.wq.lora_b"};
  for (const char* leaf : {"w_down", "w_gate", "w_up"})
    for (const char* which : {"lora_a", "lora_b"})
      for (int e = 0; e < 3; ++e) expected.push_back(fmt::format("moe.experts.{}.{}.{}", e, leaf, which));
  EXPECT_EQ(names, expected);
}

TEST(Lora, TheTableHasAdaptersAfterTheirLayerAndAllElseFrozen) {
  test::Random random(11);
  for (int trial = 0; trial < 200; ++trial) {
    ModelKeys model = test::random_model(random);
    const std::vector<Parameter> base = parameter_table(model);
    model.lora = lora_of(random(1, 9), 3);
    std::vector<Parameter> table = parameter_table(model);
    int layer = -1;
    for (const Parameter& p : table) {
      EXPECT_EQ(p.frozen, !p.adapter) << p.name;
      if (p.part != Part::layer) continue;
      EXPECT_GE(p.layer, layer) << p.name;
      layer = p.layer;
      if (!p.adapter) continue;
      const auto of = std::ranges::find(base, p.name.substr(0, p.name.rfind('.')), &Parameter::name);
      ASSERT_NE(of, base.end()) << p.name;
      const bool first = p.name == lora_a(of->name);
      EXPECT_EQ(p.shape, first ? (Shape{model.lora.rank, of->shape.dims[1]}) : (Shape{of->shape.dims[0], model.lora.rank}));
      EXPECT_EQ(p.tp_dim, of->tp_dim == (first ? 1 : 0) ? of->tp_dim : -1) << p.name;
    }
    std::erase_if(table, [](const Parameter& p) { return p.adapter; });
    ASSERT_EQ(table.size(), base.size());
    for (std::size_t i = 0; i < base.size(); ++i) EXPECT_EQ(table[i].name, base[i].name);
  }
}

TEST(Lora, ScaleIsAlphaOverTheRankOrItsRoot) {
  LoraKeys lora = lora_of(16, 24);
  EXPECT_DOUBLE_EQ(lora_scale(lora), 1.5);
  lora.scaling = LoraScaling::rslora;
  EXPECT_DOUBLE_EQ(lora_scale(lora), 6);
}

TEST(Lora, ColumnsOfAProductAreThoseOfItsTensors) {
  ModelShape s{.attention = {.H = 6, .G = 2, .D = 8, .Dv = 8}, .block = {.F = 40}, .lora = lora_of(2, 4, {"wv", "w_gate", "wo"})};
  const auto values = adapted_columns(s, "layers.0.attention.wq", s.attention.qkv_width());
  ASSERT_EQ(values.size(), 1u);
  EXPECT_EQ(values[0].tensor, "layers.0.attention.wv");
  EXPECT_EQ(values[0].first, 64);
  EXPECT_EQ(values[0].count, 16);
  EXPECT_EQ(adapted_columns(s, "layers.0.mlp.w_gate", 80).at(0).count, 40);
  EXPECT_EQ(adapted_columns(s, "layers.0.attention.wo", 48).at(0).count, 48);
  EXPECT_TRUE(adapted_columns(s, "layers.0.mlp.w_down", 48).empty());
  EXPECT_TRUE(adapted_columns(s, "head.weight", 48).empty());
  // Of a key head that ranks share, each makes half.
  s.attention.G = 1, s.keys_shared = 2;
  EXPECT_EQ(adapted_columns(s, "layers.0.attention.wq", s.own_qkv_width()).at(0).first, 52);
}

TEST(Lora, NoProductMakesAGradientOfAMatrixThatHasAnAdapter) {
  Deck deck = test::tiny_deck({}, 1);
  deck.model = adapted_model({"wq", "wv", "wo", "w_down"});
  std::vector<Segment> segments = model_segments(model_shape(deck));
  leave_frozen(segments, make_layout(parameter_table(deck.model), 1, 0), segments.size());
  const Segment& lowest = segments[1];
  ASSERT_EQ(lowest.name, "layers.0.attention");
  EXPECT_TRUE(segments[0].backward.empty()) << "nothing of the embedding is trained";
  EXPECT_EQ(names_of(lowest.forward, "lora").size(), 6u);
  EXPECT_EQ(names_of(lowest.backward, "weight_gradient").size(), 6u);
  EXPECT_EQ(names_of(lowest.backward, "input_gradient layers.0.attention.wq").size(), 1u) << "of B alone: below nothing is trained";
  for (const Segment& segment : segments)
    for (const ValueInfo& v : segment.values)
      if (v.kind == ValueKind::weight_gradient) {
        EXPECT_NE(v.name.find(".lora_"), v.name.npos) << v.name;
      }
}

TEST(Lora, PeftKnowsModulesByTheirLastNameWhereAllHaveAdapters) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(peft_target_modules(parameter_table(adapted_model({"wv", "w_down"}))), (Names{"v_proj", "down_proj"}));
  EXPECT_EQ(peft_target_modules(parameter_table(adapted_model({"layers.1.attention.wo"}))), Names{"model.layers.1.self_attn.o_proj"});
  const std::vector<std::string> mixtral = {"model.experts=2"};
  EXPECT_EQ(peft_target_modules(parameter_table(adapted_model({"wq", "experts.*"}, mixtral))), (Names{"q_proj", "w1", "w3", "w2"}));
  const std::vector<std::string> qwen = {"model.experts=2", "model.shared_ff_width=16"};
  EXPECT_EQ(peft_target_modules(parameter_table(adapted_model({"experts.w_down"}, qwen))).size(), 2 * 2u);
  EXPECT_EQ(peft_target_modules(parameter_table(adapted_model({"w_down"}, qwen))), Names{"down_proj"});
}

}  // namespace
}  // namespace tessera::lora_test
