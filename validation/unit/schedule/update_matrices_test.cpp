// Updates of whole matrices: who makes which orthogonal, and that each comes back to where it belongs.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "kernels/newton_schulz/newton_schulz.hpp"
#include "schedules.hpp"

namespace tessera::update_matrices_test {
namespace {

/// Of a rank and a unit.
struct Seen {
  std::vector<Orthogonalize::Matrix> matrices;
  std::set<std::int64_t> taken;       // elements of this rank's state that results are copied to
  std::set<std::int64_t> taken_from;  // and of the results
  Axes sharing = 0;                   // ranks among which results are gathered
  double flops = 0;
};

Deck muon_deck(std::vector<std::string> overrides, int ranks) {
  overrides.insert(overrides.end(), {"optimizer.type=muon", "batch.global=24"});
  return test::tiny_deck(overrides, ranks);
}

std::map<std::string, Seen> seen_of(const BuildRequest& request) {
  std::map<std::string, Seen> all;
  const Schedule schedule = build_schedule(request);
  const Program& program = schedule.updates_late() ? schedule.program(ProgramKind::update) : schedule.program(ProgramKind::train);
  for (const auto& phase : program.phases)
    for (const Task& task : schedule.sections[static_cast<std::size_t>(phase.section)].tasks) {
      Seen& seen = all[task.name.substr(task.name.rfind(' ') + 1)];
      if (const auto* op = std::get_if<Orthogonalize>(&task.op)) seen.matrices = op->matrices, seen.flops = task.flops;
      if (const auto* op = std::get_if<Collective>(&task.op); op && task.name.starts_with("gather orthogonal")) seen.sharing = op->axes;
      if (const auto* op = std::get_if<CopyRuns>(&task.op))
        for (const CopyRuns::Run& run : op->runs)
          for (std::int64_t i = 0; i < run.elements; ++i) {
            EXPECT_TRUE(seen.taken.insert(run.to + i).second) << task.name;
            EXPECT_TRUE(seen.taken_from.insert(run.from + i).second) << task.name;
          }
    }
  std::erase_if(all, [&](const auto& of_unit) {
    const auto unit = std::ranges::find(request.layout.units, of_unit.first, &Unit::name);
    return unit == request.layout.units.end() || !unit->learns() || unit->optimizer != "";
  });
  return all;
}

/// The ranks that share a unit's matrices do each of them once, and what they gather is copied to all that each has.
void expect_whole_matrices(const std::vector<std::string>& overrides, int ranks) {
  SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, fmt::join(overrides, " ")));
  const Deck deck = muon_deck(overrides, ranks);
  const Mesh mesh = make_mesh(deck, ranks);
  std::vector<BuildRequest> requests;
  std::vector<std::map<std::string, Seen>> of_rank;
  for (int rank = 0; rank < ranks; ++rank) {
    requests.push_back(request_for(deck, mesh, rank, Purpose::training));
    of_rank.push_back(seen_of(requests.back()));
  }
  for (int rank = 0; rank < ranks; ++rank)
    for (const auto& [name, mine] : of_rank[static_cast<std::size_t>(rank)]) {
      const Layout& layout = requests[static_cast<std::size_t>(rank)].layout;
      const Unit& unit = *std::ranges::find(layout.units, name, &Unit::name);
      std::multiset<std::pair<std::int64_t, std::int64_t>> done, wanted;
      for (const int other : group_of(mesh, mine.sharing, rank).world)
        for (const auto& m : of_rank[static_cast<std::size_t>(other)].at(name).matrices) done.insert({m.rows, m.columns});
      std::int64_t elements = 0;
      for (const Slot& slot : unit.slots) {
        const Shape& shape = layout.table[static_cast<std::size_t>(slot.parameter)].shape;
        ASSERT_EQ(shape.dims.size(), 2u) << name << " has a vector";
        wanted.insert({shape.dims[0], shape.dims[1]});
        elements += slot.elements;
      }
      EXPECT_EQ(done, wanted) << name << " of rank " << rank;
      if (mine.sharing == 0) continue;
      // All of the unit's state that lies here: at stage 0 whole, else shards that together are it.
      std::int64_t all = 0;
      const bool whole = deck.zero.stage == 0;
      for (const int other : group_of(mesh, unit.owners, rank).world)
        all += std::ssize(of_rank[static_cast<std::size_t>(other)].at(name).taken);
      EXPECT_EQ(all, elements * (whole ? unit.shards : 1)) << name << " of rank " << rank;
    }
}

TEST(UpdateMatrices, AreWholeAtOneRankOnEveryMesh) {
  for (const char* stage : {"zero.stage=0", "zero.stage=1", "zero.stage=3"}) {
    for (const int ranks : {1, 2, 3}) expect_whole_matrices({stage}, ranks);
    expect_whole_matrices({stage, "mesh.tp=2"}, 4);
    expect_whole_matrices({stage, "mesh.cp=2"}, 4);
    expect_whole_matrices({stage, "mesh.pp=2", "model.tied=true"}, 4);
    expect_whole_matrices({stage, "mesh.ep=2", "model.experts=4", "model.experts_per_token=2"}, 4);
    expect_whole_matrices({stage, "mesh.tp=2", "model.experts=4", "model.experts_per_token=2"}, 4);
  }
  expect_whole_matrices({"zero.stage=1", "mesh.replicate=2"}, 4);
  expect_whole_matrices({"zero.stage=3", "zero.hpz_partition_size=2"}, 4);
  expect_whole_matrices({"zero.stage=2", "mesh.tp=2", "zero.offload_optimizer.device=host"}, 4);
}

/// Layers together have more matrices than ranks, and none of the ranks has much more than the others.
TEST(UpdateMatrices, AreBalancedOverLayers) {
  const Deck deck = muon_deck({"model.layers=12", "zero.stage=2"}, 4);
  const Mesh mesh = make_mesh(deck, 4);
  double most = 0, all = 0;
  for (int rank = 0; rank < 4; ++rank) {
    double flops = 0;
    for (const auto& [name, seen] : seen_of(request_for(deck, mesh, rank, Purpose::training))) flops += seen.flops;
    most = std::max(most, flops), all += flops;
  }
  EXPECT_LT(most, 1.05 * all / 4);
}

TEST(UpdateMatrices, LeaveEmbeddingHeadAndVectorsToAdamW) {
  const BuildRequest request = request_for(muon_deck({}, 1), {}, 0, Purpose::training);
  for (const Unit& unit : request.layout.units)
    for (const Slot& slot : unit.slots) {
      const Parameter& p = request.layout.table[static_cast<std::size_t>(slot.parameter)];
      const bool hidden = p.shape.dims.size() == 2 && p.part != Part::embedding && p.part != Part::head;
      EXPECT_EQ(unit.optimizer, hidden ? "" : "adamw") << p.name;
    }
}

}  // namespace
}  // namespace tessera::update_matrices_test
