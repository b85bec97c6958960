// Which products leave multiprocessors of a GPU to gathers and reductions, and what that costs by the simulator.
#include "schedule/build/room.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/gemm/room.hpp"
#include "schedule/build/builder.hpp"
#include "schedule/run/communicators.hpp"
#include "schedule/simulate/prediction.hpp"

namespace tessera::room_test {
namespace {

const std::string inputs = std::string(TESSERA_SOURCE_DIR) + "/inputs/";

struct Planned {
  BuildRequest request;
  Schedule schedule;
  Placement placement;
};

Planned planned(int ranks, std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(),
                   {"model.layers=4", "activation.recompute=none", "batch.micro=4", "batch.global=" + std::to_string(4 * ranks)});
  const Deck deck = require_deck(parse_deck(inputs + "train_7b.toml", overrides, ranks));
  const Mesh mesh = make_mesh(deck, ranks);
  BuildRequest request = request_for(deck, mesh, 0, Purpose::training);
  Schedule schedule = build_schedule(request);
  return {std::move(request), std::move(schedule), {.mesh = mesh, .ranks_per_node = 8}};
}

/// Products of a step, and those that leave room.
struct Products {
  std::int64_t all = 0, leave_room = 0;
};
Products products_of(const Schedule& schedule) {
  Products found;
  for (const Program::Phase& phase : schedule.program(ProgramKind::train).phases)
    for (const Task& task : schedule.sections[static_cast<std::size_t>(phase.section)].tasks) {
      const auto* run = std::get_if<RunPass>(&task.op);
      if (!run) continue;
      const SegmentPass& pass = schedule.passes[static_cast<std::size_t>(run->pass)];
      EXPECT_LE(run->beside, pass.calls.size());
      for (std::size_t c = 0; c < pass.calls.size(); ++c)
        if (std::holds_alternative<ProductWork>(call_of(schedule.segment_of(pass), pass.calls[c]).work))
          found.all += phase.repeat, found.leave_room += c < run->beside ? phase.repeat : 0;
    }
  return found;
}

TEST(Room, SomeProductsLeaveItOnAGpuWithCollectives) {
  const Planned node = planned(8, {"run.device=cuda", "zero.stage=3"});
  const Products products = products_of(node.schedule);
  EXPECT_GT(products.leave_room, 0);
  EXPECT_LT(2 * products.leave_room, products.all) << "a layer's collectives are short beside its products";
  EXPECT_TRUE(node.schedule.collective_blocks == most_collective_blocks || node.schedule.collective_blocks == fewest_collective_blocks);
  EXPECT_EQ(wanted_communicators(node.schedule).blocks, node.schedule.collective_blocks) << "as many as the communicators take";
  EXPECT_NE(print_schedule(node.schedule).find("calls leave"), std::string::npos);
}

TEST(Room, WhereTheNetworkBoundsCollectivesTheyTakeFewBlocksAndMoreProductsAreBesideThem) {
  const Planned node = planned(8, {"run.device=cuda", "zero.stage=3"}),
                nodes = planned(64, {"run.device=cuda", "zero.stage=3", "mesh.tp=8"});
  EXPECT_EQ(nodes.schedule.collective_blocks, fewest_collective_blocks);
  EXPECT_GT(products_of(nodes.schedule).leave_room, products_of(node.schedule).leave_room);
}

TEST(Room, NoneIsLeftByRanksAloneHostRanksAndReproducibleRuns) {
  EXPECT_EQ(products_of(planned(1, {"run.device=cuda"}).schedule).leave_room, 0);
  const Planned host = planned(8, {"run.device=host", "zero.stage=3"});
  EXPECT_EQ(products_of(host.schedule).leave_room, 0);
  EXPECT_EQ(host.schedule.collective_blocks, 0);
  const Planned exact = planned(8, {"run.device=cuda", "zero.stage=3", "run.reproducible=true"});
  EXPECT_EQ(products_of(exact.schedule).leave_room, 0);
  EXPECT_EQ(exact.schedule.collective_blocks, most_collective_blocks);
}

TEST(Room, RanksMustAgreeOnIt) {
  const Planned node = planned(8, {"run.device=cuda", "zero.stage=3"});
  Schedule other = node.schedule;
  leave_no_room(other);
  EXPECT_NE(other.hash(), node.schedule.hash());
}

TEST(Room, APassLeavesItWithItsFirstCallsAlone) {
  std::vector<int> seen;
  Segment segment;
  for (int c = 0; c < 3; ++c)
    segment.forward.push_back(
        {.name = "call", .touches = {}, .run = [&](const At&) { seen.push_back(kernels::RoomBeside::multiprocessors()); }});
  const SegmentPass pass = forward_pass(segment, 0, {});
  pass.run(segment, {}, {}, {}, {}, {.calls = 2, .multiprocessors = 16});
  EXPECT_EQ(seen, (std::vector<int>{16, 16, 0}));
}

Prediction predicted(const Planned& p, const MachineProfile& machine) {
  return predict(p.request, p.schedule, place(p.schedule), machine, p.placement);
}

TEST(Room, CostsLessThanProductsThatLeaveNone) {
  const MachineProfile machine = require_machine("h100_8");
  const Planned with = planned(8, {"run.device=cuda", "zero.stage=3"});
  Planned without = with;
  leave_no_room(without.schedule);
  without.schedule.collective_blocks = with.schedule.collective_blocks;
  const Prediction leaves = predicted(with, machine), keeps = predicted(without, machine);
  EXPECT_GT(leaves.room_seconds, 0);
  EXPECT_EQ(keeps.room_seconds, 0);
  EXPECT_LT(leaves.step.contended, keeps.step.contended);
  EXPECT_LT(leaves.step.seconds, keeps.step.seconds);
  EXPECT_NE(print_prediction(leaves).find("because products beside them leave"), std::string::npos);
  EXPECT_EQ(prediction_json(leaves)["contention"]["collective_blocks"], with.schedule.collective_blocks);
}

TEST(Room, FewerBlocksMoveFewerBytes) {
  MachineProfile machine = require_machine("h100_8");
  const Planned of_network = planned(64, {"run.device=cuda", "zero.stage=3", "mesh.tp=8"});
  Planned node = planned(8, {"run.device=cuda", "zero.stage=3"});
  const auto gather = [&](const Planned& p, int blocks) {
    Schedule schedule = p.schedule;
    schedule.collective_blocks = blocks;
    const auto seconds = task_seconds(schedule, machine, p.placement);
    double all = 0;
    for (std::size_t s = 0; s < seconds.size(); ++s)
      for (std::size_t t = 0; t < seconds[s].size(); ++t)
        if (schedule.sections[s].tasks[t].lane == Lane::gather) all += seconds[s][t];
    return all;
  };
  EXPECT_NEAR(gather(node, 8) / gather(node, 16), 2, 0.1);
  EXPECT_DOUBLE_EQ(gather(of_network, 8), gather(of_network, 16));
  machine.sharing.block = 0;
  EXPECT_DOUBLE_EQ(gather(node, 8), gather(node, 16)) << "a profile that does not say it";
}

}  // namespace
}  // namespace tessera::room_test
