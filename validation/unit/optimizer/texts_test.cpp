// The table of optimizers: what rows and texts must hold for those who read them.
#include "optimizer/texts/table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "deck/schema/schema.hpp"
#include "optimizer/state.hpp"

namespace tessera::texts_test {
namespace {

TEST(OptimizerTexts, RowsHaveTheirOwnNamesAndKeysOfTheDeck) {
  std::set<std::string_view> names, theirs;
  for (const Optimizer& row : optimizers()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(&optimizer_named(row.name), &row);
    for (const std::string_view name : row.deepspeed) {
      EXPECT_TRUE(theirs.insert(name).second) << name;
      EXPECT_EQ(optimizer_of_deepspeed(name), &row);
    }
    for (const std::string_view leaf : row.keys) EXPECT_TRUE(find_key("optimizer." + std::string(leaf))) << row.name << ": " << leaf;
    for (const auto& [leaf, value] : row.defaults) EXPECT_TRUE(std::ranges::count(row.keys, leaf)) << row.name << ": " << leaf;
  }
  for (const auto& [name, why] : refused_optimizers()) EXPECT_FALSE(names.contains(name)) << name << " is there and refused";
}

/// A call has each operand once. Over all of them, weights and what is kept are changed, gradient and the step's values read, the copy
/// written with the weights; what one phase sums the next one reads.
TEST(OptimizerTexts, TouchWhatTheyDeclare) {
  using Kind = UpdateOperand::Kind;
  for (const Optimizer& row : optimizers())
    for (const UpdateShape& shape : {UpdateShape{}, {.momentum = true}, {.momentum = true, .nesterov = true}, {.warms_up = true}}) {
      SCOPED_TRACE(row.name);
      UpdateText text(shape);
      row.text(text);
      const UpdateRecord record = text.record();
      std::set<std::pair<Kind, int>> read, changed;
      for (std::size_t phase = 0; phase < record.phases.size(); ++phase) {
        ASSERT_EQ(record.phases[phase].calls.empty(), record.phases[phase].reduces == Kind::mean_signs);
        for (const UpdateCall& call : record.phases[phase].calls) {
          ASSERT_TRUE(call.code);
          EXPECT_EQ(call.changes(Kind::master), call.changes(Kind::copy)) << call.kernel;
          std::set<std::pair<Kind, int>> touched;
          for (const UpdateUse& use : call.uses) {
            EXPECT_TRUE(touched.insert({use.operand.kind, use.operand.row}).second);
            (use.access == Access::read ? read : changed).insert({use.operand.kind, use.operand.row});
            if (use.operand.kind == Kind::sums) {
              EXPECT_EQ(use.access, phase + 2 == record.phases.size() ? Access::add : Access::read);
            }
            if (use.operand.kind == Kind::matrices) {
              EXPECT_EQ(use.access, phase == 0 ? Access::write : Access::read);
            }
          }
          EXPECT_TRUE(touched.contains({Kind::values, 0}));
        }
      }
      const bool signs = record.phases[0].reduces == Kind::signs;
      EXPECT_EQ(signs, row.sends_signs && !shape.warms_up);
      EXPECT_EQ(record.phases.size(), 1U + (record.sums > 0) + record.lines + record.orthogonal.has_value() + 2 * signs);
      std::set<std::pair<Kind, int>> all = {{Kind::master, 0}, {Kind::copy, 0}};
      if (record.sums > 0) all.insert({Kind::sums, 0});
      if (record.lines) all.insert({Kind::lines, 0});
      if (record.orthogonal) all.insert({Kind::matrices, 0});
      for (int s = 0; s < std::ssize(record.state); ++s)
        if (!signs || s == record.momentum) all.insert({Kind::state, s});
      EXPECT_EQ(changed, all);
      EXPECT_TRUE(read.contains({Kind::gradient, 0}) && !changed.contains({Kind::values, 0}));
      std::set<std::string_view> groups = {master_group};
      for (const StateRow& state : record.state) EXPECT_TRUE(groups.insert(state.group).second) << state.group;
    }
}

TEST(OptimizerTexts, AdamWKeepsTwoMoments) {
  const OptimizerKeys keys;
  EXPECT_EQ(state_groups(keys), (std::vector<std::string_view>{"master", "adam_m", "adam_v"}));
  EXPECT_EQ(state_bytes(keys), 8);
}

TEST(OptimizerTexts, SgdKeepsNothingWithoutMomentum) {
  EXPECT_EQ(state_groups({{.type = "sgd"}}), (std::vector<std::string_view>{"master"}));
  EXPECT_EQ(state_groups({{.type = "sgd", .momentum = 0.9}}), (std::vector<std::string_view>{"master", "sgd_m"}));
}

TEST(OptimizerTexts, AdafactorKeepsRowsAndColumnsOfMatrices) {
  EXPECT_EQ(state_groups({{.type = "adafactor"}}),
            (std::vector<std::string_view>{"master", "adafactor_row", "adafactor_column", "adafactor_v"}));
  EXPECT_EQ(state_bytes({{.type = "adafactor"}}), 0);
  EXPECT_EQ(std::ranges::count(optimizer_names(), "adafactor_vector"), 0) << "it stands for what adafactor does not take";
}

/// Beside AdamW, which has embedding, head and vectors.
TEST(OptimizerTexts, MuonKeepsTheMomentumOfMatrices) {
  const OptimizerKeys keys{{.type = "muon", .momentum = 0.95}};
  EXPECT_EQ(state_groups(keys), (std::vector<std::string_view>{"master", "muon_m", "adam_m", "adam_v"}));
  EXPECT_EQ(state_bytes(keys), 4);
  EXPECT_EQ(state_bytes(keys, "adamw"), 8);
  const Optimizer& row = optimizer_named("muon");
  EXPECT_TRUE(row.takes({.elements = 1, .begins_block = false, .hidden_matrix = true}));
  EXPECT_FALSE(row.takes({.elements = 1 << 20}));
}

TEST(OptimizerTexts, OrthogonalMatricesAreScaledByTheirSize) {
  const OrthogonalMatrices moonlight{.matches_adamw = true}, jordan{.matches_adamw = false};
  EXPECT_FLOAT_EQ(moonlight.scale(100, 400), 4);
  EXPECT_FLOAT_EQ(moonlight.scale(400, 100), 4);
  EXPECT_FLOAT_EQ(jordan.scale(100, 400), 1);
  EXPECT_FLOAT_EQ(jordan.scale(400, 100), 2);
}

TEST(OptimizerTexts, LionKeepsOneMoment) {
  EXPECT_EQ(state_groups({{.type = "lion"}}), (std::vector<std::string_view>{"master", "lion_m"}));
  EXPECT_EQ(state_bytes({{.type = "lion"}}), 4);
}

}  // namespace
}  // namespace tessera::texts_test
