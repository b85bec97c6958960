// Kinds of layers: what a deck may say of them, and what each layer is then.
#include "deck/kinds_of_layers.hpp"

#include <gtest/gtest.h>

#include "small_deck.hpp"

namespace tessera::kinds_test {
namespace {

std::vector<LayerKeys> layers_of(const std::vector<std::string>& overrides) {
  const ParsedDeck parsed = parse_small(overrides);
  EXPECT_EQ(faults_of(parsed), "");
  return keys_of_layers(parsed.deck.model);
}

TEST(Kinds, AllLayersAreAsTheModelSaysWithoutAPattern) {
  const std::vector<LayerKeys> layers = layers_of({"model.window=7", "model.rope_theta=500.0"});
  ASSERT_EQ(layers.size(), 2U);
  for (const LayerKeys& layer : layers) EXPECT_EQ(layer, (LayerKeys{.window = 7, .rope_theta = 500}));
}

TEST(Kinds, APatternGoesOnAgainAndAgainAndKindsDifferInWhatTheySay) {
  const std::vector<LayerKeys> layers =
      layers_of({"model.layers=5", "model.pattern=LLN", "model.window=4",
                 R"(model.kinds=[{ name = "L", rope_theta = 500.0 }, { name = "N", window = 0, positions = "none" }])"});
  const LayerKeys local{.window = 4, .rope_theta = 500}, none{.positions = PositionMode::none};
  EXPECT_EQ(layers, (std::vector<LayerKeys>{local, local, none, local, local}));
  const std::vector<LayerKeys> scaled = layers_of(
      {"model.rope_scaling=linear", "model.pattern=LG", R"(model.kinds=[{ name = "L", rope_scaling = "none" }, { name = "G" }])"});
  EXPECT_EQ(scaled, (std::vector<LayerKeys>{{}, {.rope_scaling = RopeMode::linear}}));
}

TEST(Kinds, LayersOfSomeHaveNoExperts) {
  const auto dense_of = [](std::vector<std::string> overrides) {
    overrides.emplace_back("model.experts=4");
    const ParsedDeck parsed = parse_small(overrides);
    EXPECT_EQ(faults_of(parsed), "");
    const ModelKeys& m = parsed.deck.model;
    const std::vector<LayerKeys> layers = keys_of_layers(m);
    for (std::size_t i = 0; i < layers.size(); ++i) EXPECT_EQ(layers[i].experts, m.has_experts(static_cast<std::int64_t>(i))) << i;
    EXPECT_EQ(describe_layers(m), "") << "which tells of attention";
    EXPECT_EQ(any_dense(m), describe_dense(m) != "none");
    return describe_dense(m);
  };
  const std::string kinds = R"(model.kinds=[{ name = "D", experts = false }, { name = "E" }])";
  EXPECT_EQ(dense_of({}), "none");
  EXPECT_EQ(dense_of({"model.layers=5", "model.dense_layers=3"}), "0 to 2");
  EXPECT_EQ(dense_of({"model.layers=5", "model.pattern=DE", kinds}), "0, 2, 4");
  EXPECT_EQ(dense_of({"model.layers=6", "model.dense_layers=1", "model.pattern=EED", kinds}), "0, 2, 5") << "either says it";
  EXPECT_EQ(dense_of({"model.layers=60", "model.pattern=DE", kinds}), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, ..");
  EXPECT_FALSE(parse_small({}).deck.model.has_experts(0)) << "where the model has none";
}

TEST(Kinds, AreToldByAPlan) {
  const auto told = [](const std::vector<std::string>& overrides) { return describe_layers(parse_small(overrides).deck.model); };
  EXPECT_EQ(told({}), "");
  EXPECT_EQ(told({"model.window=7"}), "2 with a window of 7 tokens");
  EXPECT_EQ(told({"model.positions=none"}), "2 that see all tokens, without positions");
  EXPECT_EQ(told({"model.positions=none", "model.learned_positions=64"}), "");
  EXPECT_EQ(told({"model.layers=5", "model.pattern=LLG", "model.rope_scaling=linear",
                  R"(model.kinds=[{ name = "L", window = 3, rope_theta = 500.0, rope_scaling = "none" }, { name = "G" }])"}),
            "4 with a window of 3 tokens, base 500.0, not scaled; 1 that see all tokens, base 10000.0, scaled by linear");
}

TEST(Kinds, MayBeTablesOfTheirOwn) {
  const std::string text = small_deck + "[[model.kinds]]\nname = \"L\"\nwindow = 3\n[[model.kinds]]\nname = \"G\"\n";
  const ParsedDeck parsed = parse_deck_text(text, "small.toml", {"model.pattern=LG"}, 0);
  EXPECT_EQ(faults_of(parsed), "");
  EXPECT_EQ(keys_of_layers(parsed.deck.model)[0].window, 3);
  EXPECT_EQ(keys_of_layers(parsed.deck.model)[1].window, 0);
}

TEST(Kinds, WhatIsWrongIsSaid) {
  const struct {
    std::vector<std::string> overrides;
    std::string says;
  } cases[] = {
      {{"model.pattern=LG"}, "there is no [[model.kinds]]"},
      {{R"(model.kinds=[{ name = "L" }])"}, "model.pattern assigns it to no layer"},
      {{"model.pattern=LX", R"(model.kinds=[{ name = "L" }])"}, "model.pattern has \"X\", but model.kinds has L"},
      {{"model.pattern=LL", R"(model.kinds=[{ name = "L" }, { name = "G" }])"}, "model.kinds has G"},
      {{"model.pattern=LLG", R"(model.kinds=[{ name = "L" }, { name = "G" }])"}, "gives it to none of the 2 layers"},
      {{"model.pattern=L", R"(model.kinds=[{ name = "L" }, { name = "L" }])"}, "two tables named L"},
      {{"model.pattern=L", R"(model.kinds=[{ name = "L", rope_scaling = "yarn" }])"}, "model.rope_scaling is \"none\""},
      {{"model.pattern=L", "model.rope_scaling=yarn", R"(model.kinds=[{ name = "L", rope_scaling = "none" }])"},
       "each kind has rope_scaling"},
      {{"model.pattern=L", "model.window=3", R"(model.kinds=[{ name = "L", window = 5 }])"}, "because every kind of layer sets it"},
      {{"model.positions=none", "model.rope_theta=500.0"}, "no layer has positions = \"rope\""},
      {{"model.positions=none", "model.rotary_fraction=0.5"}, "no layer has positions = \"rope\""},
      {{"model.positions=none", "model.rope_pairs=neighbours"}, "no layer has positions = \"rope\""},
      {{"model.learned_positions=64"}, "some layers have positions = \"rope\"; set model.positions = \"none\""},
      {{"model.learned_positions=4", "model.positions=none", "batch.sequence_length=8"},
       "batch.sequence_length 8 is more than the model's 4 position vectors (model.learned_positions); set it to at most "
       "4"},
      {{"model.learned_positions=64", "model.positions=none", "model.max_context=32"}, "has no effect with model.learned_positions"},
      {{R"(model.kinds=[{ name = "Local" }])"}, "kind 1 has a name that is not a letter"},
      {{R"(model.kinds=[{ window = 3 }])"}, "kind 1 has no name"},
      {{R"(model.kinds=[{ name = "L" }, { name = "G", windw = 3 }])"}, "kind 2 has windw, which is not one of"},
      {{R"(model.kinds=[{ name = "L", window = -1 }])"}, "has a window that is not an integer"},
      {{R"(model.kinds=[{ name = "L", rope_theta = "x" }])"}, "has a rope_theta that is not a number"},
      {{R"(model.kinds=[{ name = "L", positions = "learned" }])"}, "has positions that are not \"rope\" or \"none\""},
      {{R"(model.kinds=[{ name = "L", positions = "none", rope_theta = 500.0 }])"}, "has a rotation, but positions"},
      {{R"(model.kinds=[{ name = "L", experts = 4 }])"}, "has experts that are not true or false"},
      {{"model.pattern=L", R"(model.kinds=[{ name = "L", experts = true }])"}, "kind L has experts = true, but model.experts = 0"},
      {{"model.pattern=D", "model.experts=4", R"(model.kinds=[{ name = "D", experts = false }])"},
       "no layer's kind has the 4 experts of model.experts"},
      {{"model.pattern=ED", "model.experts=4", "model.dense_layers=1", R"(model.kinds=[{ name = "E" }, { name = "D", experts = false }])"},
       "no layer's kind has the 4 experts"},
      {{R"(model.kinds=["L"])"}, "expected a list of kinds"},
  };
  for (const auto& c : cases) {
    const std::string faults = faults_of(parse_small(c.overrides));
    EXPECT_NE(faults.find(c.says), std::string::npos) << c.says << " in " << faults;
  }
}

}  // namespace
}  // namespace tessera::kinds_test
