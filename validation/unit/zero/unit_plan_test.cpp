// What of a unit lies where: over stages, owners and modes, everything has one owner, and gradients reach it.
#include "zero/unit_plan.hpp"

#include <gtest/gtest.h>

#include "../model/random_models.hpp"
#include "base/check.hpp"

namespace tessera::unit_plan_test {
namespace {

using enum GradientPath::Reduced;

Layout small_layout(int shards, int stage) {
  const Deck deck = test::tiny_deck({"model.layers=1"}, 1);
  return make_layout(parameter_table(deck.model), shards, stage == 3 && shards > 1 ? 100 : 0);
}

Group owners_of(int rank, int size) { return group_of({{1, 1, size, 1, 1, 1}}, data_axes, rank); }

TEST(UnitPlan, OwnedPartsCoverAUnitOnce) {
  for (int stage = 0; stage <= 3; ++stage)
    for (int size = 1; size <= 5; ++size) {
      const Layout layout = small_layout(size, stage);
      for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
        std::int64_t at = 0;
        for (int rank = 0; rank < size; ++rank) {
          const UnitPlan plan = plan_unit(layout, u, {.stage = stage}, {owners_of(rank, size)});
          EXPECT_EQ(plan.owned, (Range{at, at + plan.shard}));
          at = plan.owned.end;
        }
        EXPECT_EQ(at, layout.units[static_cast<std::size_t>(u)].elements);
      }
    }
}

TEST(UnitPlan, StagesKeepWhatTheTableSays) {
  const int size = 4;
  for (int stage = 0; stage <= 3; ++stage) {
    const Layout layout = small_layout(size, stage);
    for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
      const Unit& unit = layout.units[static_cast<std::size_t>(u)];
      const Range whole{0, unit.elements};
      const UnitPlan plan = plan_unit(layout, u, {.stage = stage}, {owners_of(2, size)});
      EXPECT_EQ(plan.parameters, stage < 3 || unit.persistent ? whole : plan.owned);
      EXPECT_EQ(plan.gradient.held, stage < 2 ? whole : plan.owned);
      EXPECT_EQ(plan.state, stage < 1 ? whole : plan.owned);
    }
  }
}

TEST(UnitPlan, WhatIsNotTrainedIsWholeAndHasNoGradient) {
  for (int stage = 0; stage <= 3; ++stage) {
    Layout layout = small_layout(4, stage);
    layout.units[0].trained = false;
    const UnitRules rules{.stage = stage, .offload_optimizer = stage > 0, .offload_parameters = stage == 3};
    const UnitPlan plan = plan_unit(layout, 0, rules, {owners_of(2, 4)});
    const Range whole{0, layout.units[0].elements};
    EXPECT_EQ(plan.parameters, whole);
    EXPECT_EQ(plan.state, whole);
    EXPECT_EQ(plan.owned.size(), whole.size() / 4) << "what it saves";
    EXPECT_EQ(plan.gradient.held.size(), 0);
    EXPECT_EQ(plan.gradient.reduced, never);
    EXPECT_FALSE(plan.gradient.offloaded || plan.parameters_offloaded);
  }
}

TEST(UnitPlan, OfReplicasOneCountsTheNorm) {
  const Mesh mesh{{1, 3, 2, 1, 1, 1}};
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const UnitPlan plan = plan_unit(small_layout(2, 1), 0, {.stage = 1}, groups_of_unit(mesh, owner_axes(mesh), rank));
    EXPECT_EQ(plan.counted, rank < 2);
    EXPECT_EQ(plan.gradient.replicas, 3);
    EXPECT_EQ(plan.owned.begin > 0, rank % 2 == 1);
  }
}

TEST(UnitPlan, AGroupsPartOfAComputeCopyIsMadeOfNeighbouringShards) {
  const Mesh mesh = make_mesh({.dp = 6}, 6, 2);
  const Layout layout = small_layout(6, 3);
  for (int u = 0; u < static_cast<int>(layout.units.size()); ++u)
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      const Unit& unit = layout.units[static_cast<std::size_t>(u)];
      const UnitPlan plan = plan_unit(layout, u, {.stage = 3}, groups_of_unit(mesh, owner_axes(mesh), rank));
      const std::int64_t half = unit.elements / 2;
      if (unit.persistent) {
        EXPECT_EQ(plan.sources.size, 6);
        continue;
      }
      EXPECT_EQ(plan.parameters, (Range{rank % 2 * half, (rank % 2 + 1) * half}));
      EXPECT_EQ(plan.owned.begin, plan.parameters.begin + plan.sources.rank * plan.shard);
      EXPECT_EQ(plan.sources.size, 3);
      EXPECT_EQ(plan.state, plan.owned);
    }
}

TEST(UnitPlan, GradientsMeetWhereStageAndModeSay) {
  const auto path = [](int stage, int size, bool reproducible) {
    const UnitRules rules{.stage = stage, .reproducible = reproducible};
    return plan_unit(small_layout(size, stage), 0, rules, {owners_of(size - 1, size)}).gradient;
  };
  for (bool reproducible : {false, true}) {
    for (int stage = 0; stage <= 3; ++stage) {
      EXPECT_EQ(path(stage, 1, reproducible).reduced, never);
      const GradientPath several = path(stage, 3, reproducible);
      EXPECT_EQ(several.reduced, stage < 2 ? once : every_micro_batch);
      EXPECT_EQ(several.scattered, stage > 0);
      EXPECT_EQ(several.direct, stage < 2 && !reproducible);
      EXPECT_EQ(several.sum, reproducible ? DType::i64 : DType::f32);
      EXPECT_EQ(several.kept, several.sum);
    }
    EXPECT_EQ(path(3, 1, reproducible).direct, !reproducible) << "a rank alone keeps all whole";
  }
}

// Where momenta meet in the place of gradients.
TEST(UnitPlan, OwnGradientsStayWholeAndNeverMeet) {
  for (const DType gradients : {DType::f32, DType::bf16})
    for (const int size : {1, 3}) {
      const UnitRules rules{.stage = 0, .gradients = gradients, .own_gradients = true};
      const GradientPath path = plan_unit(small_layout(size, 0), 0, rules, {owners_of(size - 1, size)}).gradient;
      EXPECT_EQ(path.reduced, never);
      EXPECT_EQ(path.own, size > 1) << "of one rank it is the whole one";
      EXPECT_EQ(path.held.size(), small_layout(size, 0).units[0].elements);
      EXPECT_EQ(path.kept, gradients);
    }
  EXPECT_THROW(plan_unit(small_layout(3, 1), 0, {.stage = 2, .own_gradients = true}, {owners_of(1, 3)}), Error);
}

TEST(UnitPlan, SumsInBf16AreKeptSoAndMeetSoButInFixedPoint) {
  for (bool reproducible : {false, true})
    for (int stage = 0; stage <= 3; ++stage)
      for (int size : {1, 3}) {
        const UnitRules rules{.stage = stage, .reproducible = reproducible, .gradients = DType::bf16};
        const GradientPath path = plan_unit(small_layout(size, stage), 0, rules, {owners_of(size - 1, size)}).gradient;
        EXPECT_EQ(path.kept, DType::bf16);
        EXPECT_EQ(path.sum, reproducible ? DType::i64 : DType::bf16);
        EXPECT_FALSE(path.direct) << "kernels write fp32";
      }
}

// As many of the last units as make up the share, and no more.
TEST(UnitPlan, AShareOfTheOptimizerIsThatOfTheLastUnits) {
  const Layout layout = small_layout(2, 2);
  double all = 0;
  for (const Unit& unit : layout.units) all += static_cast<double>(unit.elements);
  for (const double share : {0.01, 0.3, 0.5, 0.9, 1.0}) {
    double offloaded = 0, first = 0;
    for (int u = static_cast<int>(layout.units.size()) - 1; u >= 0; --u) {
      const UnitPlan plan = plan_unit(layout, u, {.stage = 2, .offload_optimizer = true, .offload_ratio = share}, {owners_of(0, 2)});
      const auto elements = static_cast<double>(layout.units[static_cast<std::size_t>(u)].elements);
      EXPECT_EQ(plan.gradient.offloaded, offloaded < share * all) << share << " unit " << u;
      if (plan.gradient.offloaded) offloaded += elements, first = elements;
    }
    EXPECT_GE(offloaded, share * all);
    EXPECT_LT(offloaded - first, share * all);
  }
}

TEST(UnitPlan, WithoutTrainingParametersAreWhole) {
  const UnitPlan plan = plan_unit(small_layout(2, 3), 0, {.stage = 3, .training = false}, {owners_of(1, 2)});
  EXPECT_TRUE(plan.storage.parameters_whole);
  EXPECT_EQ(plan.parameters.size(), 2 * plan.shard);
}

}  // namespace
}  // namespace tessera::unit_plan_test
