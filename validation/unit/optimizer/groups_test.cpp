// Groups of the optimizer: which tensors they have, and what their updates take.
#include "optimizer/groups.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "../model/random_models.hpp"
#include "base/check.hpp"

namespace tessera::groups_test {
namespace {

Deck deck_with(const std::string& groups, const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides = {"optimizer.groups=" + groups};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return test::tiny_deck(overrides, 1);
}

UpdateRates rates(const Deck& deck, const std::string& tensor) {
  const std::vector<Parameter> table = parameter_table(deck.model);
  return rates_of(deck.optimizer, *std::ranges::find(table, tensor, &Parameter::name));
}

TEST(OptimizerGroups, TheFirstThatHasATensorCounts) {
  const Deck deck = deck_with(R"([{ tensors = ["head.*", "*.norm"], learning_rate = 1e-4 }, { tensors = ["*"], weight_decay = 0.25 }])");
  EXPECT_FLOAT_EQ(rates(deck, "head.weight").learning_rate_scale, 0.1f) << "of optimizer.learning_rate = 1e-3";
  EXPECT_FLOAT_EQ(rates(deck, "head.weight").weight_decay, 0.1f) << "what the group does not say is the optimizer's";
  EXPECT_EQ(rates(deck, "layers.0.mlp.norm").weight_decay, 0) << "vectors have none";
  EXPECT_EQ(rates(deck, "layers.0.mlp.w_up").learning_rate_scale, 1);
  EXPECT_FLOAT_EQ(rates(deck, "layers.0.mlp.w_up").weight_decay, 0.25f);
  const UpdateRates plain = rates(test::tiny_deck(), "layers.0.mlp.w_up");
  EXPECT_EQ(plain.learning_rate_scale, 1);
  EXPECT_FLOAT_EQ(plain.weight_decay, 0.1f);
}

TEST(OptimizerGroups, AllLinearIsTheMatricesOfLayers) {
  const std::string group = R"([{ tensors = ["all-linear"], learning_rate = 0.5 }])";
  for (const char* lora : {"lora.rank=0", "lora.rank=2"})
    for (const char* experts : {"model.experts=0", "model.experts=4"}) {
      const Deck deck = deck_with(group, {lora, experts});
      const std::vector<Parameter> table = parameter_table(deck.model);
      for (const Parameter& p : table)
        EXPECT_EQ(group_of(deck.optimizer, p) != nullptr, p.layer >= 0 && p.shape.dims.size() == 2) << p.name;
      EXPECT_NO_THROW(require_groups(deck.optimizer, table));
    }
  const Deck none = deck_with(group, {R"(model.freeze=["layers.*"])"});
  EXPECT_THROW(require_groups(none.optimizer, parameter_table(none.model)), Error) << "none of them is trained";
}

TEST(OptimizerGroups, AreTablesOfADeckOrAListAndPrintAsOne) {
  const std::string tables = test::tiny_deck_text +
                             "\n[[optimizer.groups]]\ntensors = [\"head.*\"]\nlearning_rate = 1e-4\n\n[[optimizer.groups]]\n"
                             "tensors = [\"*norm\"]\nweight_decay = 0\n";
  const Deck deck = require_deck(parse_deck_text(tables, "tables.toml", {}, 1));
  const Deck list = deck_with(R"([{ tensors = ["head.*"], learning_rate = 1e-4 }, { tensors = ["*norm"], weight_decay = 0.0 }])");
  EXPECT_EQ(deck.optimizer, list.optimizer);
  EXPECT_EQ(require_deck(parse_deck_text(print_deck(deck), "again.toml", {}, 1)), deck);
  EXPECT_NE(deck_identity(deck), deck_identity(test::tiny_deck()));
}

TEST(OptimizerGroups, WhatCannotBeIsNamed) {
  const auto fault = [](const std::string& groups) {
    const ParsedDeck parsed = parse_deck_text(test::tiny_deck_text, "tiny.toml", {"optimizer.groups=" + groups}, 1);
    return parsed.faults.empty() ? "" : parsed.faults.front().str();
  };
  const auto names = [](const std::string& message, std::string_view part) { return message.find(part) != message.npos; };
  EXPECT_PRED2(names, fault(R"([{ tensors = ["a"], learning_rat = 1 }])"), "group 1 has learning_rat, which is not one of");
  EXPECT_PRED2(names, fault(R"([{ tensors = ["a"], learning_rate = 1 }, { weight_decay = 1 }])"), "group 2 has no tensors");
  EXPECT_PRED2(names, fault(R"([{ tensors = ["a"] }])"), "group 1 has none of type, learning_rate and weight_decay");
  EXPECT_PRED2(names, fault(R"([{ tensors = "a", weight_decay = 1 }])"), "has tensors that are not a list");
  EXPECT_PRED2(names, fault(R"([{ tensors = [1], weight_decay = 1 }])"), "has tensors that are not texts");
  EXPECT_PRED2(names, fault(R"([{ tensors = ["a"], weight_decay = -1 }])"), "has a weight_decay that is not a number from 0 to 1000");
  EXPECT_PRED2(names, fault(R"(["a"])"), "expected a list of groups");
  EXPECT_PRED2(names, fault(R"([{ tensors = ["a"], type = "lio" }])"), "group 1 has a type that is not one of \"adamw\", \"adam\"");
  EXPECT_PRED2(names, fault(R"([{ tensors = ["a"], type = 3 }])"), "group 1 has a type that is not one of");
  EXPECT_PRED2(names, fault(R"([{ tensors = ["a"], type = "lion", eps = 1e-8 }])"), "group 1 has eps, which \"lion\" does not read");
  EXPECT_PRED2(names, fault(R"([{ tensors = ["a"], type = "lion", beta1 = 1 }])"),
               "group 1 has a beta1 that is refused: 1 is out of range");
  EXPECT_PRED2(names, fault(R"([{ tensors = ["a"], weight_decay = 1, beta1 = 0.5 }])"), "group 1 has beta1 without a type");
  EXPECT_PRED2(names, fault(R"([{ tensors = ["a"], type = "sgd", nesterov = true }])"), "group 1 has nesterov without a momentum");
  EXPECT_PRED2(names, fault(R"([{ tensors = ["a"], type = "sgd", nesterov = 1 }])"),
               "group 1 has a nesterov that is refused: expected true or false, got 1");
  EXPECT_PRED2(names, fault(R"([{ tensors = ["a"], type = "muon", newton_schulz = "quintc" }])"), "did you mean \"quintic\"?");
  EXPECT_PRED2(names, fault(R"([{ tensors = ["a"], type = "lamb", min_trust_ratio = 20 }])"),
               "a min_trust_ratio above its max_trust_ratio");
  EXPECT_PRED2(names, fault(R"([{ tensors = ["a"], type = "lion", moments_rounding = "nearest" }])"), "add moments");
  EXPECT_PRED2(names, fault(R"([{ tensors = ["a"], type = "sgd", moments = "bf16" }])"), "sgd without momentum keeps none");
  EXPECT_PRED2(names, fault(R"([{ tensors = ["a"], type = "sgd", gradient_clipping = 1 }])"), "has gradient_clipping, which is not one of");
  EXPECT_EQ(fault("[]"), "");
  const Deck slip = deck_with(R"([{ tensors = ["head.*", "hed.*"], weight_decay = 1 }])");
  EXPECT_THROW(require_groups(slip.optimizer, parameter_table(slip.model)), Error);
  const Deck frozen = deck_with(R"([{ tensors = ["head.*"], weight_decay = 1 }])", {R"(model.freeze=["head.*"])"});
  EXPECT_THROW(require_groups(frozen.optimizer, parameter_table(frozen.model)), Error);
}

TEST(OptimizerGroups, AreDescribed) {
  const Deck deck = deck_with(R"([{ tensors = ["head.*"], learning_rate = 1e-4, weight_decay = 0.0 }])");
  const std::vector<std::string> lines = describe_groups(deck.optimizer, parameter_table(deck.model));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], "head.*: learning rate 0.0001, weight decay 0; 2 tensors, 1.98 K parameters");
  const Deck other = deck_with(R"([{ tensors = ["head.*"], type = "sgd", momentum = 0.9, nesterov = true }])");
  EXPECT_EQ(describe_groups(other.optimizer, parameter_table(other.model))[0],
            "head.*: sgd, momentum 0.9, nesterov true; 2 tensors, 1.98 K parameters");
  EXPECT_EQ(require_deck(parse_deck_text(print_deck(other), "again.toml", {}, 1)), other);
}

}  // namespace
}  // namespace tessera::groups_test
