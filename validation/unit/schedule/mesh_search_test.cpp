// The search over meshes: what it offers is what it says, in order, and of few meshes the fastest of all.
#include "schedule/simulate/mesh_search.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "../machine/small_machine.hpp"
#include "schedule/build/request.hpp"
#include "schedules.hpp"

namespace tessera::mesh_search_test {
namespace {

const LimitsOf no_limits = [](const Deck&) { return MemoryLimits{}; };

MeshRecommendation search(const Deck& deck, int ranks, int per_node, const LimitsOf& limits = no_limits) {
  return recommend_meshes(deck, test::small_machine(), ranks, per_node, true, limits);
}

Prediction predicted(const Deck& deck, int ranks, int per_node) {
  const Mesh mesh = make_mesh(deck, ranks);
  const Placement placement{.mesh = mesh, .ranks_per_node = per_node, .lanes_side_by_side = true};
  std::vector<RunPlan> stages;
  for (int rank = 0; rank < ranks; rank += ranks / mesh.size(Axis::pp))
    stages.push_back(plan_run(request_for(deck, mesh, rank, Purpose::training)));
  if (stages.size() > 1) return predict_stage(stages.size() - 1, stages, test::small_machine(), placement);
  return predict(stages[0].request, stages[0].schedule, stages[0].memory, test::small_machine(), placement);
}

TEST(MeshSearch, OffersDifferentMeshesInOrderEachWithItsDeck) {
  const Deck deck = test::tiny_deck({"run.device=cuda", "memory.device=80 GB", "model.heads=4", "model.kv_heads=4", "model.layers=4",
                                     "batch.global=32", "batch.sequence_length=16", "mesh.tp=2"},
                                    8);
  const MeshRecommendation found = search(deck, 8, 4);
  ASSERT_GT(found.choices.size(), 6u);
  EXPECT_EQ(found.meshes, std::ssize(found.choices)) << "all of them fit";
  std::set<std::string> meshes;
  double before = 0;
  for (const MeshChoice& c : found.choices) {
    EXPECT_TRUE(meshes.insert(describe(c.mesh)).second) << describe(c.mesh);
    EXPECT_GE(c.choice.prediction.step.seconds, before);
    before = c.choice.prediction.step.seconds;
    Deck changed = deck;
    for (const Change& change : c.choice.changes) change.apply(changed);
    const ParsedDeck again = parse_deck_text(print_deck(changed), "the choice", {}, 8);
    ASSERT_TRUE(again.faults.empty()) << again.faults[0].message;
    EXPECT_EQ(make_mesh(again.deck, 8), c.mesh);
    EXPECT_DOUBLE_EQ(predicted(again.deck, 8, 4).step.seconds, before) << overrides_of(c.choice.changes);
  }
  EXPECT_TRUE(meshes.contains("pp 2 x dp 1 x cp 1 x ep 1 x tp 4"));
  EXPECT_TRUE(meshes.contains("pp 1 x dp 4 x cp 2 x ep 1 x tp 1"));
}

TEST(MeshSearch, OfFewMeshesFindsTheFastestStep) {
  // One layer has no stages, an odd length is not cut over cp: tp 1 and 2 are left.
  const Deck deck = test::tiny_deck({"run.device=cuda", "memory.device=80 GB", "model.heads=2", "model.kv_heads=2", "model.layers=1",
                                     "batch.global=8", "batch.micro=2", "batch.sequence_length=15"},
                                    4);
  const MeshRecommendation found = search(deck, 4, 2);
  ASSERT_EQ(found.choices.size(), 2u);
  double best = 1e30;
  for (const std::int64_t tp : {1, 2})
    for (const std::int64_t stage : {0, 1, 2, 3})
      for (const std::int64_t micro : micro_sizes(deck.batch, static_cast<int>(4 / tp)))
        for (const Recompute mode : {Recompute::none, Recompute::selective, Recompute::full}) {
          Deck tried = deck;
          tried.mesh.tp = tp, tried.mesh.dp = 0, tried.zero.stage = stage, tried.batch.micro = micro, tried.activation.recompute = mode;
          const ParsedDeck parsed = parse_deck_text(print_deck(tried), "tried", {}, 4);
          if (parsed.faults.empty() && micro <= 8) best = std::min(best, predicted(parsed.deck, 4, 2).step.seconds);
        }
  EXPECT_DOUBLE_EQ(found.choices.front().choice.prediction.step.seconds, best);
}

TEST(MeshSearch, LooksAtMoreTensorParallelRanksThanKeyHeads) {
  const Deck deck = test::tiny_deck({"run.device=cuda", "memory.device=80 GB", "model.kv_heads=1", "batch.global=8"}, 4);
  std::set<std::string> meshes;
  for (const MeshChoice& c : search(deck, 4, 4).choices) meshes.insert(describe(c.mesh));
  EXPECT_TRUE(meshes.contains("pp 1 x dp 1 x cp 1 x ep 1 x tp 4"));
  EXPECT_TRUE(meshes.contains("pp 1 x dp 1 x cp 2 x ep 1 x tp 2"));
}

// Four ranks cannot share two heads, but a ring.
TEST(MeshSearch, TriesTheOtherMethodWhereTheDecksCannotShareHeads) {
  for (const char* method : {"ulysses", "ring"}) {
    const Deck deck = test::tiny_deck({"run.device=cuda", "memory.device=80 GB", "model.heads=2", "model.kv_heads=2", "model.layers=1",
                                       "batch.global=8", "batch.sequence_length=16", "mesh.cp=2", fmt::format("context.method={}", method)},
                                      4);
    std::map<std::string, std::string_view> methods;
    for (const MeshChoice& c : search(deck, 4, 4).choices) methods[describe(c.mesh)] = word_of(c.choice.deck.context.method);
    EXPECT_EQ(methods["pp 1 x dp 1 x cp 4 x ep 1 x tp 1"], "ring");
    EXPECT_NE(methods["pp 1 x dp 2 x cp 2 x ep 1 x tp 1"], "") << "the faster of both, where both can";
    EXPECT_EQ(methods["pp 1 x dp 4 x cp 1 x ep 1 x tp 1"], "ulysses");
  }
}

TEST(MeshSearch, WhereNothingFitsSaysTheLeast) {
  const Deck deck = test::tiny_deck({"run.device=cuda", "memory.device=80 GB"}, 2);
  const LimitsOf nothing = [](const Deck&) {
    MemoryLimits limits;
    limits[static_cast<std::size_t>(MemoryKind::device)] = MemoryLimit{1000, "a GPU"};
    return limits;
  };
  const MeshRecommendation found = search(deck, 2, 2, nothing);
  EXPECT_TRUE(found.choices.empty());
  EXPECT_GT(found.meshes, 0);
  EXPECT_GT(memory_bytes(found.least), 1000);
}

}  // namespace
}  // namespace tessera::mesh_search_test
