// Which optimizers a deck has, and which updates which tensors.
#include "optimizer/state.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "../model/random_models.hpp"
#include "base/check.hpp"
#include "model/table/layout.hpp"

namespace tessera::chosen_test {
namespace {

Deck deck_with(const std::string& groups, const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides = {"optimizer.groups=" + groups};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return test::tiny_deck(overrides, 1);
}

std::vector<Parameter> table_of(const Deck& deck) {
  std::vector<Parameter> table = parameter_table(deck.model);
  assign_optimizers(deck.optimizer, table);
  return table;
}

const std::string mixed =
    R"([{ tensors = ["head.*"], type = "lion" }, { tensors = ["*.w_down"], type = "lion", beta2 = 0.9 },)"
    R"( { tensors = ["embedding.*"], type = "lion", beta2 = 0.99, weight_decay = 0.0 }, { tensors = ["*"], weight_decay = 0.25 }])";

TEST(ChosenOptimizers, AreEachOnceWithTheKeysThatTheyRead) {
  const Deck deck = deck_with(mixed, {"optimizer.beta2=0.8", "optimizer.eps=1e-6"});
  const std::vector<ChosenOptimizer> all = chosen_optimizers(deck.optimizer);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].name, "");
  EXPECT_EQ(all[0].keys.beta2, 0.8);
  EXPECT_EQ(all[1].name, "lion");
  EXPECT_EQ(all[1].keys.beta2, 0.99) << "Lion's own default, not that of [optimizer]";
  EXPECT_EQ(all[1].keys.eps, OptimizerKeys{}.eps) << "which it does not read";
  EXPECT_EQ(all[2].name, "lion-2");
  EXPECT_EQ(all[2].keys.beta2, 0.9);
  EXPECT_EQ(state_groups(deck.optimizer), (std::vector<std::string_view>{"master", "adam_m", "adam_v", "lion_m"}));
  EXPECT_EQ(state_bytes(deck.optimizer), 8);
  EXPECT_EQ(state_bytes(deck.optimizer, "lion-2"), 4);
  EXPECT_EQ(chosen_optimizers(test::tiny_deck().optimizer).size(), 1u);
  EXPECT_EQ(chosen_optimizers(deck_with(R"([{ tensors = ["head.*"], type = "adamw", beta2 = 0.95 }])").optimizer).size(), 1u)
      << "the deck's own, named again";
}

// Keys of groups are those of [optimizer]: whatever an optimizer reads, a group may say.
TEST(ChosenOptimizers, OfGroupsReadAllKeysOfTheirOwn) {
  const Deck deck = deck_with(R"([{ tensors = ["layers.*.w_*"], type = "muon", newton_schulz = "simple", muon_scale = "original" },)"
                              R"( { tensors = ["head.*"], type = "adamw", bias_correction = false, moments = "fp32" }])",
                              {"optimizer.moments=bf16", "optimizer.moments_rounding=nearest"});
  const std::vector<ChosenOptimizer> all = chosen_optimizers(deck.optimizer);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1].keys.newton_schulz, OrthogonalSteps::simple);
  EXPECT_EQ(all[1].keys.muon_scale, MuonScale::original);
  EXPECT_EQ(all[1].keys.momentum, 0.95) << "Muon's default";
  EXPECT_EQ(all[1].keys.moments, DType::bf16) << "of [optimizer], where the group is silent";
  EXPECT_EQ(all[1].keys.moments_rounding, MomentsRounding::nearest);
  EXPECT_FALSE(all[2].keys.bias_correction);
  EXPECT_EQ(all[2].keys.moments, DType::f32);
  EXPECT_EQ(require_deck(parse_deck_text(print_deck(deck), "again.toml", {}, 1)), deck);
}

TEST(ChosenOptimizers, HaveUnitsOfTheirOwn) {
  const Layout layout = make_layout(table_of(deck_with(mixed)), 2, 100);
  std::set<std::string> names;
  for (const Unit& unit : layout.units) {
    EXPECT_TRUE(names.insert(unit.name).second) << unit.name;
    for (const Slot& slot : unit.slots)
      EXPECT_EQ(layout.table[static_cast<std::size_t>(slot.parameter)].optimizer, unit.optimizer) << unit.name;
  }
  for (const char* name :
       {"layers.0", "layers.0.lion-2", "layers.1.lion-2", "head.lion", "embedding.lion", "persistent", "persistent.lion"})
    EXPECT_TRUE(names.contains(name)) << name;
  EXPECT_LT(layout.find("layers.0.mlp.norm").unit, layout.find("head.norm").unit) << "the deck's own optimizer first";
}

TEST(ChosenOptimizers, WhatCannotBeIsNamed) {
  const auto message = [](const Deck& deck) -> std::string {
    try {
      table_of(deck);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_NE(message(deck_with(R"([{ tensors = ["*.wq"], type = "lion" }])")).find("wq and layers.0.attention.wk"), std::string::npos);
  EXPECT_NE(
      message(deck_with(R"([{ tensors = ["head.*"], type = "lion" }, { tensors = ["layers.0.*"], type = "lion", beta2 = 0.9 },)"
                        R"( { tensors = ["layers.1.*"], type = "lion", beta2 = 0.8 }, { tensors = ["*"], type = "lion", beta2 = 0.7 }])"))
          .find("5 optimizers, but a run has 4 at most"),
      std::string::npos);
  EXPECT_EQ(message(deck_with(mixed)), "");
}

}  // namespace
}  // namespace tessera::chosen_test
