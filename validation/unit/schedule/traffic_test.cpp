// Bytes that a rank gets from another node in a step at stage 3, of two nodes of two ranks: what ZeRO++ saves.
#include <gtest/gtest.h>

#include <set>

#include "schedules.hpp"
#include "zero/unit_plan.hpp"

namespace tessera::traffic_test {
namespace {

constexpr int ranks = 4, of_node = 2;

struct Traffic {
  double weights = 0, gradients = 0;
};

/// In bf16 with one micro-batch a rank; all parameters are gathered.
Traffic between_nodes(std::vector<std::string> overrides, int rank) {
  overrides.insert(overrides.end(), {"zero.stage=3", "zero.param_persistence_threshold=0", "zero.max_reuse_distance=0",
                                     "precision.compute=bf16", "batch.micro=2", "batch.global=8"});
  const Deck deck = test::tiny_deck(overrides, ranks);
  const Mesh mesh = make_mesh(deck, ranks);
  const Schedule schedule = build_schedule(request_for(deck, mesh, rank, Purpose::training));
  Traffic all;
  for (const auto& phase : schedule.program(ProgramKind::train).phases)
    for (const Task& task : schedule.sections[static_cast<std::size_t>(phase.section)].tasks) {
      const auto* op = std::get_if<Collective>(&task.op);
      if (op == nullptr || op->kind == CollectiveKind::all_reduce) continue;
      const Group group = group_of(mesh, op->axes, rank);
      const auto elsewhere = std::ranges::count_if(group.world, [&](int other) { return other / of_node != rank / of_node; });
      (op->kind == CollectiveKind::all_gather ? all.weights : all.gradients) +=
          task.bytes_moved * static_cast<double>(phase.repeat) * static_cast<double>(elsewhere) / (group.size - 1);
    }
  return all;
}

TEST(Traffic, BetweenNodesIsCutAsZeroPlusPlusSays) {
  constexpr double int8 = 260.0 / 256, int4 = 132.0 / 256;  // bytes an element in blocks
  const std::string weights = "zero.quantized_weights=true", gradients = "zero.quantized_gradients=true",
                    groups = "zero.hpz_partition_size=2";
  for (int rank = 0; rank < ranks; ++rank) {
    const Traffic plain = between_nodes({}, rank), in_groups = between_nodes({groups}, rank);
    const double shards =
        plain.gradients / (2 * 4);  // elements of a rank's shards: both ranks of the other node send a sum of them in fp32
    EXPECT_DOUBLE_EQ(in_groups.weights, 2 * shards) << "of the other node's copy what this rank holds, once a step";
    EXPECT_DOUBLE_EQ(in_groups.gradients, plain.gradients);

    const Traffic qwz = between_nodes({weights}, rank), qwz_in_groups = between_nodes({weights, groups}, rank);
    EXPECT_DOUBLE_EQ(qwz.weights, plain.weights * int8 / 2);
    EXPECT_DOUBLE_EQ(qwz.gradients, plain.gradients);
    EXPECT_DOUBLE_EQ(qwz_in_groups.weights, int8 * shards);

    const Traffic qgz = between_nodes({weights, gradients}, rank), both = between_nodes({weights, gradients, groups}, rank);
    EXPECT_DOUBLE_EQ(qgz.weights, qwz.weights);
    EXPECT_DOUBLE_EQ(qgz.gradients, plain.gradients * int4 / 4);
    EXPECT_DOUBLE_EQ(both.weights, qwz_in_groups.weights);
    EXPECT_DOUBLE_EQ(both.gradients, plain.gradients * int4 / 8) << "sums of a node cross in place of each rank's";
  }
}

/// Tensors that stages of a pipeline gather as codes.
std::set<std::string> quantised(const std::vector<std::string>& keys, int stages) {
  const Deck deck = test::tiny_deck(keys, ranks);
  std::set<std::string> names;
  for (int rank = 0; rank < stages; ++rank) {
    const Mesh mesh{{stages, 1, 1, 1, 1, 1}};
    const Layout layout = layout_for(deck, mesh, rank);
    const UnitRules rules{.stage = 3, .quantized_weights = true, .tied = deck.model.tied};
    for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
      const Unit& unit = layout.units[static_cast<std::size_t>(u)];
      if (plan_unit(layout, u, rules, groups_of_unit(mesh, unit.owners, rank)).wire == kernels::Wire::plain) continue;
      for (const Slot& slot : unit.slots) names.insert(layout.table[static_cast<std::size_t>(slot.parameter)].name);
    }
  }
  return names;
}

TEST(Traffic, StagesOfAPipelineQuantiseWhatOneRankDoes) {
  for (const std::string tied : {"model.tied=true", "model.tied=false"})
    for (const std::string small : {"zero.param_persistence_threshold=0", "zero.param_persistence_threshold=auto"}) {
      const std::vector<std::string> keys = {tied, small, "zero.stage=3", "zero.quantized_weights=true", "run.reproducible=true"};
      const std::set<std::string> alone = quantised(keys, 1);
      EXPECT_EQ(alone.contains("embedding.weight"), tied == "model.tied=false");
      EXPECT_EQ(quantised(keys, 2), alone) << tied << " " << small;
    }
}

}  // namespace
}  // namespace tessera::traffic_test
