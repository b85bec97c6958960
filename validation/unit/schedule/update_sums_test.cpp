// Sums of a tensor that an update takes: whom they are added up over.
#include <gtest/gtest.h>

#include <map>

#include "schedules.hpp"

namespace tessera::update_sums_test {
namespace {

/// Of a rank and a unit: how often it sums each element of each tensor, and whom its sums meet with.
struct Summed {
  std::map<int, std::vector<int>> count;  // by row of the table
  Axes axes = 0;
  int reductions = 0;
};

std::map<std::string, Summed> sums_of(const BuildRequest& request) {
  std::map<std::string, Summed> all;
  const Schedule schedule = build_schedule(request);
  const Program& program = schedule.updates_late() ? schedule.program(ProgramKind::update) : schedule.program(ProgramKind::train);
  for (const auto& phase : program.phases)
    for (const Task& task : schedule.sections[static_cast<std::size_t>(phase.section)].tasks) {
      const std::string unit_name = task.name.substr(task.name.rfind(' ') + 1);
      if (const auto* op = std::get_if<Collective>(&task.op); op && task.name.starts_with("all-reduce sums of "))
        all[unit_name].axes = op->axes, ++all[unit_name].reductions;
      const auto* step = std::get_if<OptimizerStep>(&task.op);
      if (!step || step->update.once || !step->update.changes(UpdateOperand::Kind::sums)) continue;
      const Unit& unit = *std::ranges::find(request.layout.units, unit_name, &Unit::name);
      for (const Piece& piece : step->pieces) {
        std::vector<int>& count = all[unit_name].count[piece.parameter];
        count.resize(static_cast<std::size_t>(request.layout.table[static_cast<std::size_t>(piece.parameter)].shape.elements()));
        for_each_run(request.layout, unit, piece, [&](const NaturalRun& run) {
          for (std::int64_t i = 0; i < run.elements; ++i) ++count[static_cast<std::size_t>(run.tensor_offset + i)];
        });
      }
    }
  return all;
}

/// The ranks whose sums meet have summed each element of each tensor once.
void expect_whole_tensors(const std::string& optimizer, std::vector<std::string> overrides, int ranks) {
  SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, fmt::join(overrides, " ")));
  overrides.insert(overrides.end(), {"optimizer.type=" + optimizer, "batch.global=24", "zero.sub_group_size=512"});
  const Deck deck = test::tiny_deck(overrides, ranks);
  const Mesh mesh = make_mesh(deck, ranks);
  std::vector<std::map<std::string, Summed>> of_rank;
  for (int rank = 0; rank < ranks; ++rank) of_rank.push_back(sums_of(request_for(deck, mesh, rank, Purpose::training)));
  for (int rank = 0; rank < ranks; ++rank)
    for (const auto& [unit, mine] : of_rank[static_cast<std::size_t>(rank)]) {
      EXPECT_LE(mine.reductions, optimizer == "adafactor" ? 2 : 1) << unit;
      std::map<int, std::vector<int>> together;
      for (const int other : group_of(mesh, mine.axes, rank).world)
        for (const auto& [row, count] : of_rank[static_cast<std::size_t>(other)].at(unit).count) {
          std::vector<int>& total = together[row];
          total.resize(count.size());
          for (std::size_t i = 0; i < count.size(); ++i) total[i] += count[i];
        }
      EXPECT_FALSE(together.empty()) << unit;
      for (const auto& [row, count] : together)
        EXPECT_EQ(std::ranges::count(count, 1), std::ssize(count)) << "rank " << rank << ", unit " << unit << ", row " << row;
    }
}

class UpdateSums : public ::testing::TestWithParam<const char*> {};

TEST_P(UpdateSums, AreOfWholeTensorsOnEveryMesh) {
  const auto expect_whole_tensors = [](const std::vector<std::string>& overrides, int ranks) {
    update_sums_test::expect_whole_tensors(GetParam(), overrides, ranks);
  };
  for (const char* stage : {"zero.stage=0", "zero.stage=1", "zero.stage=3"}) {
    for (const int ranks : {1, 3}) expect_whole_tensors({stage}, ranks);
    expect_whole_tensors({stage, "mesh.tp=2"}, 4);
    expect_whole_tensors({stage, "mesh.cp=2"}, 4);
    expect_whole_tensors({stage, "mesh.pp=2", "model.tied=true"}, 4);
    expect_whole_tensors({stage, "mesh.ep=2", "model.experts=4", "model.experts_per_token=2"}, 4);
    expect_whole_tensors({stage, "mesh.tp=2", "model.experts=4", "model.experts_per_token=2"}, 4);
  }
  expect_whole_tensors({"zero.stage=1", "mesh.replicate=2"}, 4);
  expect_whole_tensors({"zero.stage=3", "zero.hpz_partition_size=2"}, 4);
  expect_whole_tensors({"zero.stage=2", "mesh.tp=2", "zero.offload_optimizer.device=host"}, 4);
}

INSTANTIATE_TEST_SUITE_P(All, UpdateSums, ::testing::Values("lamb", "adafactor"));

}  // namespace
}  // namespace tessera::update_sums_test
