// The simulator: small schedules reckoned by hand, and what must hold of every schedule and machine.
#include "schedule/simulate/simulate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "../machine/small_machine.hpp"
#include "schedule/simulate/prediction.hpp"
#include "schedule/simulate/task_seconds.hpp"
#include "schedules.hpp"
#include "timelines.hpp"

namespace tessera::simulate_test {
namespace {

constexpr auto C = Lane::compute, G = Lane::gather, R = Lane::reduce;

/// Tasks with their lanes and times; waits are made by hand.
struct Piece {
  std::string name;
  Lane lane;
  double seconds;
  std::vector<std::pair<Lane, std::int64_t>> waits = {};  ///< how many tasks of that lane, from the start of the repetition
};
struct ByHand {
  Schedule schedule;
  OrderedProgram program;
  TaskSeconds seconds;
  void add(const std::vector<Piece>& pieces, std::int64_t repeat = 1) {
    Section section{.name = "section", .tasks = {}};
    OrderedPhase phase{.section = static_cast<int>(schedule.sections.size()), .repeat = repeat, .micro = {}, .waits = {}};
    std::vector<Waits> of_tasks;
    seconds.emplace_back();
    for (const Piece& piece : pieces) {
      section.tasks.push_back({.name = piece.name, .op = Zero{}, .lane = piece.lane, .uses = {}});
      Waits waits;
      for (auto [lane, n] : piece.waits) waits[static_cast<std::size_t>(lane)] = n;
      of_tasks.push_back(waits);
      seconds.back().push_back(piece.seconds);
      ++phase.tasks[static_cast<std::size_t>(piece.lane)];
    }
    phase.waits.emplace_back(std::move(of_tasks));
    schedule.sections.push_back(std::move(section));
    program.push_back(std::move(phase));
  }
  Simulation run(SimulationOptions options = {}) const { return simulate(schedule, program, seconds, options); }
};
double of(const std::array<double, lane_count>& lanes, Lane lane) { return lanes[static_cast<std::size_t>(lane)]; }
using Spans = std::vector<std::pair<double, double>>;
Spans spans(const Simulation& s, Lane lane) {
  Spans result;
  for (const TaskTime& t : s.timeline.lanes[static_cast<std::size_t>(lane)]) result.emplace_back(t.begin, t.end);
  return result;
}

TEST(Simulate, LanesOverlapAsFarAsWaitsAllow) {
  ByHand h;
  h.add({{"gather a", G, 2}, {"compute a", C, 3, {{G, 1}}}, {"gather b", G, 4}, {"compute b", C, 1, {{G, 2}}}, {"reduce", R, 5, {{C, 1}}}});
  const Simulation s = h.run({.timeline = true});
  EXPECT_EQ(spans(s, G), (Spans{{0, 2}, {2, 6}}));
  EXPECT_EQ(spans(s, C), (Spans{{2, 5}, {6, 7}}));
  EXPECT_EQ(spans(s, R), (Spans{{5, 10}}));
  EXPECT_EQ(s.seconds, 10);
  EXPECT_EQ(of(s.exposed, G), 3) << "two at the start and one before compute b";
  EXPECT_EQ(of(s.exposed, R), 3) << "from the end of compute b";
  EXPECT_EQ(of(s.busy, C), 4);
  ASSERT_EQ(s.critical.size(), 3u);
  EXPECT_EQ(s.critical[0].name, "reduce");
  EXPECT_EQ(s.critical[1].name, "compute a");
  EXPECT_EQ(s.critical[2].name, "gather a");
}

TEST(Simulate, WhatComputeWaitsForMayItselfHaveWaited) {
  ByHand h;  // compute waits for a gather that began late, since an upload was before it
  h.add({{"upload", Lane::upload, 4}, {"gather", G, 2, {{Lane::upload, 1}}}, {"compute", C, 1}, {"compute", C, 1, {{G, 1}}}});
  const Simulation s = h.run();
  EXPECT_EQ(s.seconds, 7);
  EXPECT_EQ(of(s.exposed, Lane::upload), 3);
  EXPECT_EQ(of(s.exposed, G), 2);
}

TEST(Simulate, WaitsForDisksAreTheirsOnAnyLane) {
  ByHand h;  // a read that is not pipelined runs on the lane of the update
  h.add({{"read", Lane::cpu_optimizer, 3},
         {"optimizer", Lane::cpu_optimizer, 2},
         {"write", Lane::disk_write, 4, {{Lane::cpu_optimizer, 2}}},
         {"upload", Lane::upload, 1, {{Lane::disk_write, 1}}},
         {"gather", G, 6, {{Lane::upload, 1}}},
         {"compute", C, 1, {{G, 1}}}});
  h.schedule.sections.front().tasks[0].op = ReadDisk{};
  h.schedule.sections.front().tasks[2].op = WriteDisk{};
  const auto waited = h.run().waited;
  const auto by_kind = [&](WaitKind kind) { return waited[static_cast<std::size_t>(kind)]; };
  EXPECT_EQ(by_kind(WaitKind::disk), 3 + 4);
  EXPECT_EQ(by_kind(WaitKind::host), 2);
  EXPECT_EQ(by_kind(WaitKind::transfer), 1);
  EXPECT_EQ(by_kind(WaitKind::communication), 6);
}

// The first in the list has the disk when both want it, and the other what that leaves: of 0 to 9 s it is taken throughout.
TEST(Simulate, ReadsAndWritesShareTheDisk) {
  ByHand h;
  h.add({{"read a", Lane::disk_read, 2},
         {"optimizer a", Lane::cpu_optimizer, 1, {{Lane::disk_read, 1}}},
         {"write a", Lane::disk_write, 3, {{Lane::cpu_optimizer, 1}}},
         {"read b", Lane::disk_read, 2},
         {"optimizer b", Lane::cpu_optimizer, 1, {{Lane::disk_read, 2}}},
         {"read c", Lane::disk_read, 2},
         {"compute", C, 1, {{Lane::disk_read, 3}}}});
  for (Task& task : h.schedule.sections.front().tasks) {
    if (task.lane == Lane::disk_read) task.op = ReadDisk{};
    if (task.lane == Lane::disk_write) task.op = WriteDisk{};
  }
  const Simulation s = h.run({.timeline = true});
  EXPECT_EQ(spans(s, Lane::disk_write), (Spans{{3, 6}}));
  EXPECT_EQ(spans(s, Lane::disk_read), (Spans{{0, 2}, {2, 7}, {7, 9}}));
  EXPECT_EQ(s.seconds, 10);
  EXPECT_EQ(of(s.busy, Lane::disk_read), 6);
  EXPECT_EQ(of(s.busy, Lane::disk_write), 3);
}

TEST(Simulate, OneThreadRunsTheListInItsOrder) {
  ByHand h;
  h.add({{"gather a", G, 2}, {"compute a", C, 3, {{G, 1}}}, {"gather b", G, 4}, {"compute b", C, 1}, {"reduce", R, 5, {{C, 1}}}}, 3);
  const Simulation s = h.run({.lanes_side_by_side = false, .timeline = true});
  EXPECT_EQ(s.seconds, 45);
  EXPECT_EQ(of(s.busy, C), 12);
  EXPECT_EQ(of(s.exposed, G), 18);
  EXPECT_EQ(of(s.exposed, R), 15);
  EXPECT_EQ(spans(s, C)[1], (std::pair<double, double>{9, 10}));
}

// Two slots: what compute reads of repetition r is gathered when r - 2 has been computed.
TEST(Simulate, SlotsLetALaneRunAhead) {
  ByHand h;
  h.add({{"gather", G, 1, {{C, -1}}}, {"compute", C, 3, {{G, 1}}}}, 4);
  const Simulation s = h.run({.timeline = true});
  EXPECT_EQ(spans(s, G), (Spans{{0, 1}, {1, 2}, {4, 5}, {7, 8}}));
  EXPECT_EQ(spans(s, C), (Spans{{1, 4}, {4, 7}, {7, 10}, {10, 13}}));
}

TEST(Simulate, RepetitionsThatAreNotPlayedCountAllTheSame) {
  ByHand h;
  h.add({{"begin", C, 1}});
  h.add({{"gather layers.0", G, 2, {{C, -1}}},
         {"forward layers.0", C, 1, {{G, 1}}},
         {"gather layers.1", G, 2},
         {"forward layers.1", C, 1, {{G, 2}}},
         {"reduce", R, 1, {{C, 2}}}},
        5000);
  h.add({{"end", C, 7, {{R, 0}}}});
  const Simulation all = h.run({.most_repetitions = 5000}), some = h.run({.timeline = true, .most_repetitions = 20});
  EXPECT_EQ(all.left_out, 0);
  EXPECT_EQ(some.left_out, 4980);
  EXPECT_EQ(some.timeline.lanes[1].size(), 40u);
  EXPECT_NEAR(some.seconds, all.seconds, 1e-9 * all.seconds);
  for (std::size_t l = 0; l < lane_count; ++l) {
    EXPECT_EQ(some.tasks[l], all.tasks[l]);
    EXPECT_NEAR(some.busy[l], all.busy[l], 1e-9 * all.seconds);
    EXPECT_NEAR(some.exposed[l], all.exposed[l], 1e-9 * all.seconds);
  }
  for (std::size_t k = 0; k < wait_kind_count; ++k) EXPECT_NEAR(some.waited[k], all.waited[k], 1e-9 * all.seconds);
  ASSERT_EQ(some.critical.size(), all.critical.size());
  EXPECT_EQ(some.critical.front().name, "gather layers.*");
  for (std::size_t i = 0; i < all.critical.size(); ++i) {
    EXPECT_EQ(some.critical[i].name, all.critical[i].name);
    EXPECT_NEAR(some.critical[i].seconds, all.critical[i].seconds, 1e-9 * all.seconds);
  }
}

TEST(Simulate, OfNothing) {
  const Simulation s = simulate({}, {}, {});
  EXPECT_EQ(s.seconds, 0);
  EXPECT_TRUE(s.critical.empty());
}

template <std::size_t n>
double sum(const std::array<double, n>& parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

Placement placement_of(const test::Setting& setting, int per_node, bool side_by_side) {
  return {.mesh = {{1, 1, setting.ranks, 1, 1, 1}}, .ranks_per_node = per_node, .lanes_side_by_side = side_by_side};
}

class SimulateReal : public testing::TestWithParam<test::Setting> {};

TEST_P(SimulateReal, IsTrueToTheScheduleAndAddsUp) {
  const Schedule schedule = test::schedule_of(GetParam());
  if (!schedule.has(ProgramKind::train)) return;
  const MemoryPlan plan = place(schedule);
  const OrderedProgram program = order(schedule, plan, schedule.program(ProgramKind::train));
  const TaskSeconds seconds = task_seconds(schedule, test::small_machine(), placement_of(GetParam(), 2, true));
  const Simulation beside = simulate(schedule, program, seconds, {.timeline = true, .most_repetitions = 1 << 20});
  test::expect_true_to(beside.timeline, schedule, plan, ProgramKind::train);
  double on_path = 0;
  for (const CriticalTasks& tasks : beside.critical) on_path += tasks.seconds;
  EXPECT_NEAR(on_path, beside.seconds, 1e-9 * beside.seconds) << "the critical path is as long as the step";
  EXPECT_NEAR(of(beside.busy, C) + sum(beside.exposed), beside.seconds, 1e-9 * beside.seconds);
  EXPECT_EQ(of(beside.exposed, C), 0);
  EXPECT_NEAR(sum(beside.waited), sum(beside.exposed), 1e-9 * beside.seconds);
  const Simulation alone = simulate(schedule, program, seconds, {.lanes_side_by_side = false, .most_repetitions = 1 << 20});
  EXPECT_NEAR(alone.seconds, sum(beside.busy), 1e-9 * alone.seconds) << "one thread takes the sum of all tasks";
  EXPECT_LE(beside.seconds, alone.seconds * (1 + 1e-9));
  EXPECT_GE(beside.seconds, *std::max_element(beside.busy.begin(), beside.busy.end()) * (1 - 1e-9));
}

// Nothing that becomes faster makes a step slower.
TEST_P(SimulateReal, RisesWithNoRate) {
  const Schedule schedule = test::schedule_of(GetParam());
  if (!schedule.has(ProgramKind::train)) return;
  const OrderedProgram program = order(schedule, place(schedule), schedule.program(ProgramKind::train));
  const auto run = [&](const MachineProfile& machine) {
    return simulate(schedule, program, task_seconds(schedule, machine, placement_of(GetParam(), 2, true))).seconds;
  };
  const double before = run(test::small_machine());
  for (std::size_t rate = 0; rate < test::rates_of_small_machine; ++rate) {
    MachineProfile faster = test::small_machine();
    test::quicken(faster, rate);
    EXPECT_LE(run(faster), before * (1 + 1e-12)) << "rate " << rate;
  }
}

INSTANTIATE_TEST_SUITE_P(All, SimulateReal, testing::ValuesIn(test::settings()), [](const auto& info) { return info.param.name; });

TEST(TaskSeconds, OfCollectivesAreThoseOfRingsAndTrees) {
  const MachineProfile m = test::small_machine();  // in a node 1 us and 1, 2, 4 GB/s, between nodes 10 us and 0.5 GB/s
  const Group node{.axes = data_axes, .rank = 0, .size = 4, .world = {0, 1, 2, 3}};
  EXPECT_DOUBLE_EQ(collective_seconds(CollectiveKind::all_gather, 3e6, node, 4, m), 3e-6 + 3e-3);
  EXPECT_DOUBLE_EQ(collective_seconds(CollectiveKind::reduce_scatter, 3e6, node, 4, m), 3e-6 + 1.5e-3);
  EXPECT_DOUBLE_EQ(collective_seconds(CollectiveKind::all_reduce, 6e6, node, 4, m), 4e-6 + 1.5e-3);
  // Two nodes of two: of 4 MB that all end with, half comes from the other node.
  EXPECT_DOUBLE_EQ(collective_seconds(CollectiveKind::all_gather, 3e6, node, 2, m), 1e-6 + 10e-6 + 4e-3);
  // A rank a node: half of the adapters' bytes are another group's where two ranks share a node.
  const Group across{.axes = data_axes, .rank = 0, .size = 2, .world = {0, 2}};
  EXPECT_DOUBLE_EQ(collective_seconds(CollectiveKind::all_gather, 1e6, across, 2, m), 10e-6 + 2 * 1e6 / 0.5e9);
  EXPECT_DOUBLE_EQ(collective_seconds(CollectiveKind::all_gather, 1e6, across, 1, m), 10e-6 + 1e6 / 0.5e9);
  // Of an exchange every rank gets something else: of 3 MB that each of a node receives, 2 come from the other node, for two ranks.
  EXPECT_DOUBLE_EQ(collective_seconds(CollectiveKind::all_to_all, 3e6, node, 4, m), 3e-6 + 3e-3);
  EXPECT_DOUBLE_EQ(collective_seconds(CollectiveKind::all_to_all, 3e6, node, 2, m), 1e-6 + 10e-6 + 2 * 2e6 / 0.5e9);
  // What rotates is one piece for each rank; of four ranks on two nodes one of each node sends to the other, of a rank a node both do.
  EXPECT_DOUBLE_EQ(collective_seconds(CollectiveKind::rotate, 3e6, node, 4, m), 1e-6 + 3e-3);
  EXPECT_DOUBLE_EQ(collective_seconds(CollectiveKind::rotate, 3e6, node, 2, m), 1e-6 + 10e-6 + 3e6 / 0.5e9);
  EXPECT_DOUBLE_EQ(collective_seconds(CollectiveKind::rotate, 3e6, across, 2, m), 10e-6 + 2 * 3e6 / 0.5e9);
  // Two ranks further all of a node's come from the other one, three ranks further one as before.
  EXPECT_DOUBLE_EQ(collective_seconds(CollectiveKind::rotate, 3e6, node, 2, m, 2), 1e-6 + 10e-6 + 2 * 3e6 / 0.5e9);
  EXPECT_DOUBLE_EQ(collective_seconds(CollectiveKind::rotate, 3e6, node, 2, m, 3), 1e-6 + 10e-6 + 3e6 / 0.5e9);
}

TEST(TaskSeconds, OfDisksAreSharedByTheRanksOfANode) {
  const MachineProfile m = test::small_machine();  // 100 us, 100 MB/s for a node
  Schedule s;
  s.shape.dtype = DType::f32;
  s.buffers = {{.name = "file", .tier = Tier::nvme, .bytes = 2000000}, {.name = "memory", .tier = Tier::host, .bytes = 2000000}};
  const Use file{0, 0, 1000000, Access::read}, memory{1, 0, 1000000, Access::write};
  s.sections.push_back({"disk", {{.name = "read", .op = Copy{}, .lane = Lane::upload, .uses = {memory, file}}}});
  s.sections[0].tasks.push_back(
      {.name = "write", .op = Copy{}, .lane = Lane::download, .uses = {{0, 0, 2000000, Access::write}, {1, 0, 2000000, Access::read}}});
  const auto seconds = [&](int ranks) { return task_seconds(s, m, {.mesh = {{1, 1, ranks, 1, 1, 1}}, .ranks_per_node = 4}); };
  EXPECT_NEAR(seconds(1)[0][0], 1e-6 + 1e-4 + 0.01, 1e-12);
  EXPECT_NEAR(seconds(2)[0][1], 1e-6 + 1e-4 + 0.04, 1e-12) << "two ranks share the disk";
  EXPECT_NEAR(seconds(8)[0][0], 1e-6 + 1e-4 + 0.04, 1e-12) << "four ranks of each node do";
}

// Calls find their rates by name.
TEST(TaskSeconds, KernelsOfProfilesAreThoseOfSegments) {
  std::set<std::string> called{"sum_of_squares", "accumulate", "adamw", "stream"};  // tasks of their own
  for (const char* variant : {"model.qk_norm=true", "model.qkv_bias=true"}) {
    const Schedule schedule = test::schedule_of({.name = "", .overrides = {variant}});
    for (const Segment& segment : schedule.towers.front().segments)
      for (const auto* calls : {&segment.forward, &segment.backward})
        for (const Call& call : *calls) {
          called.insert(std::string(call.kernel()));
          EXPECT_EQ(call.flops > 0, !std::holds_alternative<MemoryWork>(call.work)) << call.name;
          if (const auto* memory = std::get_if<MemoryWork>(&call.work)) {
            EXPECT_GT(memory->bytes, 0) << call.name;
          }
        }
  }
  for (const char* kernel : memory_kernels) EXPECT_TRUE(called.contains(kernel)) << kernel;
}

TEST(TaskSeconds, WhatAProfileLacksIsNamed) {
  MachineProfile m = test::small_machine();
  m.transfer = {}, m.network = {};
  const Schedule offloaded =
      test::schedule_of({.name = "", .overrides = {"zero.stage=2", "zero.offload_optimizer.device=host"}, .ranks = 2});
  const auto message = [&](const Schedule& schedule, int per_node) -> std::string {
    try {
      task_seconds(schedule, m, {.mesh = {{1, 1, 2, 1, 1, 1}}, .ranks_per_node = per_node});
    } catch (const Error& error) {
      EXPECT_EQ(error.code, ExitCode::usage);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message(offloaded, 2).find("no [transfer]"), std::string::npos) << message(offloaded, 2);
  const Schedule plain = test::schedule_of({.name = "", .overrides = {"zero.stage=2"}, .ranks = 2});
  EXPECT_NE(message(plain, 1).find("no [collectives.network]"), std::string::npos) << message(plain, 1);
  m.fp32 = {}, m.bf16 = {};
  EXPECT_NE(message(plain, 2).find("no [gemm."), std::string::npos) << message(plain, 2);
}

TEST(Prediction, NothingExceedsThePeak) {
  MachineProfile m = test::small_machine();
  for (ComputeRates* r : {&m.fp32, &m.bf16}) {  // as fast as a profile may say
    for (RateGrid* grid : {&r->forward, &r->input_gradient, &r->weight_gradient, &r->attention_forward, &r->attention_backward})
      for (double& rate : grid->rates) rate = r->peak;
    for (auto& [name, grid] : r->kernels)
      for (double& rate : grid.rates) rate = 1e30;
  }
  m.task_overhead = m.least_call = m.node.latency = 0;
  for (const char* recompute : {"none", "full"}) {
    const BuildRequest request = test::request_of({.name = "", .overrides = {fmt::format("activation.recompute={}", recompute)}});
    const Schedule schedule = build_schedule(request);
    const Prediction p = predict(request, schedule, place(schedule), m, {.mesh = {{1, 1, 1, 1, 1, 1}}});
    EXPECT_LE(p.mfu_causal, 1);
    EXPECT_GT(p.mfu_causal, 0.5);
    EXPECT_LE(p.tokens_per_second, p.most_tokens_per_second);
    EXPECT_NEAR(p.tokens_per_second * p.step.seconds, static_cast<double>(p.tokens), 1e-6);
  }
}

}  // namespace
}  // namespace tessera::simulate_test
