// Names in a deck that its model does not have: each is a fault of its key, at its line.
#include "optimizer/check_names.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "../model/random_models.hpp"

namespace tessera::check_names_test {
namespace {

std::vector<std::string> faults(const std::string& tables, std::vector<std::string> overrides = {}) {
  overrides.emplace_back("activation.recompute=full");
  ParsedDeck parsed = parse_deck_text(test::tiny_deck_text + tables, "tiny.toml", overrides, 1);
  EXPECT_TRUE(parsed.faults.empty()) << parsed.faults.front().str();
  check_names(parsed);
  std::vector<std::string> said;
  for (const Fault& fault : parsed.faults) said.push_back(fault.str());
  return said;
}

/// The one fault of an override.
std::string fault_of(const std::string& override_text) {
  const std::vector<std::string> said = faults("", {override_text});
  EXPECT_EQ(said.size(), 1u) << override_text;
  return said.empty() ? "" : said.front();
}

bool begins(const std::string& text, const std::string& with) { return text.starts_with(with); }

TEST(CheckNames, EachIsAFaultOfItsKey) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {R"(model.freeze=["layers.9.*"])", "model.freeze: no tensor of this model matches \"layers.9.*\""},
      {R"(model.freeze=["*"])", "model.freeze: leaves no tensor to train"},
      {R"(optimizer.groups=[{ tensors = ["hed.*"], weight_decay = 1 }])",
       "optimizer.groups: \"hed.*\" matches no trained tensor; the nearest names are head."},
      {R"(activation.keep=["attention.contxt"])", "activation.keep: "},
  };
  for (const auto& [text, message] : wrong) EXPECT_PRED2(begins, fault_of(text), "override '" + text + "': " + message);
  const std::vector<std::string> fp8 =
      faults("", {"precision.compute=bf16", "precision.fp8=rowwise", R"(precision.fp8_skip=["layers.9"])"});
  ASSERT_EQ(fp8.size(), 1u);
  EXPECT_PRED2(begins, fp8.front(),
               R"(override 'precision.fp8_skip=["layers.9"]': precision.fp8_skip: no tensor of this model matches "layers.9")");
  const std::vector<std::string> lora = faults("", {"lora.rank=2", R"(lora.targets=["wz"])"});
  ASSERT_EQ(lora.size(), 1u);
  EXPECT_PRED2(begins, lora.front(), R"(override 'lora.targets=["wz"]': lora.targets: "wz" is not a matrix)");
  const std::vector<std::string> module = faults("", {"lora.rank=2", "lora.modules_to_save=lm_haed"});
  ASSERT_EQ(module.size(), 1u);
  EXPECT_PRED2(begins, module.front(), "override 'lora.modules_to_save=lm_haed': lora.modules_to_save: no module of this model is called");
  const std::vector<std::string> dropout =
      faults("", {"lora.rank=2", "lora.dropout=0.1", "lora.targets=all-linear", "model.experts=2", "model.expert_ff_width=8"});
  ASSERT_EQ(dropout.size(), 1u);
  EXPECT_PRED2(begins, dropout.front(), "override 'lora.dropout=0.1': lora.dropout: lora.targets describe layers.0.moe.experts.0.w_gate");
}

TEST(CheckNames, TheLineIsThatOfTheKey) {
  const std::string table = "\n[[optimizer.groups]]\ntensors = [\"hed.*\"]\nweight_decay = 0\n";
  const auto line = 2 + std::ranges::count(test::tiny_deck_text, '\n');
  const std::vector<std::string> said = faults(table, {R"(activation.keep=["attention.contxt"])"});
  ASSERT_EQ(said.size(), 2u);
  EXPECT_PRED2(begins, said[1], "tiny.toml:" + std::to_string(line));
}

TEST(CheckNames, WhatTheModelHasIsNoFault) {
  EXPECT_TRUE(faults("", {R"(model.freeze=["embedding.*"])", R"(optimizer.groups=[{ tensors = ["head.*"], weight_decay = 1 }])",
                          R"(activation.keep=["attention"])"})
                  .empty());
}

}  // namespace
}  // namespace tessera::check_names_test
