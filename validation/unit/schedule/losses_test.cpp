// What a step loses beside the work of its kernels: contention, power, jitter over ranks, launches, and what programs reach of rates.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "../machine/small_machine.hpp"
#include "base/check.hpp"
#include "schedule/simulate/figures.hpp"
#include "schedule/simulate/prediction.hpp"
#include "schedule/simulate/recommend.hpp"
#include "schedule/simulate/task_seconds.hpp"
#include "schedules.hpp"

namespace tessera::losses_test {
namespace {

constexpr auto C = Lane::compute, G = Lane::gather;

struct Piece {
  Lane lane;
  double seconds;
  std::vector<std::pair<Lane, std::int64_t>> waits = {};
};

/// One section of tasks with waits by hand.
Simulation play(const std::vector<Piece>& pieces, double contention, bool side_by_side = true) {
  Schedule schedule;
  Section section{.name = "section", .tasks = {}};
  OrderedPhase phase{.section = 0, .repeat = 1, .micro = {}, .waits = {}};
  TaskSeconds seconds(1);
  std::vector<Waits> waits;
  for (const Piece& piece : pieces) {
    section.tasks.push_back({.name = "task", .op = Zero{}, .lane = piece.lane, .uses = {}});
    Waits of_task;
    for (const auto& [lane, n] : piece.waits) of_task[static_cast<std::size_t>(lane)] = n;
    waits.push_back(of_task);
    seconds[0].push_back(piece.seconds);
    ++phase.tasks[static_cast<std::size_t>(piece.lane)];
  }
  phase.waits.emplace_back(std::move(waits));
  schedule.sections.push_back(std::move(section));
  return simulate(schedule, {phase}, seconds, {.lanes_side_by_side = side_by_side, .contention = contention});
}

TEST(Contention, SlowsComputeBesideACollectiveThatTheListHasBeforeIt) {
  // Beside the gather of 4 s half of the rate: 2 s of 5 are done then, and 3 s are left.
  const Simulation s = play({{G, 4}, {C, 5}}, 0.5);
  EXPECT_DOUBLE_EQ(s.seconds, 7);
  EXPECT_DOUBLE_EQ(s.contended, 2);
  EXPECT_DOUBLE_EQ(s.busy[static_cast<std::size_t>(C)], 7) << "compute's time and what is exposed make up the step";
}

TEST(Contention, IsMadeUpForWhereTheListHasTheCollectiveBehind) {
  // The gather runs beside the first task: half of its 4 s are owed, and the second task has them.
  const Simulation s = play({{C, 5}, {G, 4}, {C, 1}}, 0.5);
  EXPECT_DOUBLE_EQ(s.seconds, 5 + 1 + 2);
  EXPECT_DOUBLE_EQ(s.contended, 2);
}

TEST(Contention, CountsCollectivesThatRunAtOnceOnce) {
  EXPECT_DOUBLE_EQ(play({{G, 4}, {Lane::reduce, 4}, {C, 5}}, 0.5).seconds, 7);
  EXPECT_DOUBLE_EQ(play({{G, 2}, {Lane::reduce, 4}, {C, 5}}, 0.5).seconds, 7) << "the longer one";
}

TEST(Contention, IsOfWhatRunsBesideEachOther) {
  EXPECT_DOUBLE_EQ(play({{G, 4}, {C, 5, {{G, 1}}}}, 0.5).seconds, 9) << "compute waits for the gather";
  EXPECT_DOUBLE_EQ(play({{G, 4}, {C, 5}}, 0.5, false).seconds, 9) << "one thread";
  EXPECT_DOUBLE_EQ(play({{Lane::upload, 4}, {C, 5}}, 0.5).seconds, 5) << "a copy has no kernel";
  EXPECT_DOUBLE_EQ(play({{G, 4}, {C, 5}}, 0).seconds, 5);
}

/// The schedule of a gather of 4 s before a task of 5 s, whose parts lose different shares beside it.
double beside_gather(const std::vector<LossPart>& parts) {
  Schedule schedule;
  schedule.sections.push_back(
      {"section", {{.name = "gather", .op = Zero{}, .lane = G, .uses = {}}, {.name = "task", .op = Zero{}, .lane = C, .uses = {}}}});
  OrderedPhase phase{.section = 0, .repeat = 1, .micro = {}, .waits = {}};
  phase.waits.emplace_back(std::vector<Waits>(2));
  phase.tasks[static_cast<std::size_t>(G)] = phase.tasks[static_cast<std::size_t>(C)] = 1;
  const Contention contention{.losses = {{{}, parts}}, .room = {0}};
  return simulate(schedule, {phase}, {{4, 5}}, {.contention = 0.5, .parts = &contention}).seconds;
}

TEST(Contention, IsOfThePartThatRunsBesideTheCollective) {
  EXPECT_DOUBLE_EQ(beside_gather({}), 7) << "the share of the profile";
  EXPECT_DOUBLE_EQ(beside_gather({{.share = 1, .loss = 0}}), 5);
  EXPECT_DOUBLE_EQ(beside_gather({{.share = 0.8, .loss = 0}, {.share = 0.2, .loss = 0.9}}), 5) << "the gather has ended by then";
  EXPECT_DOUBLE_EQ(beside_gather({{.share = 0.2, .loss = 0.75}, {.share = 0.8, .loss = 0}}), 4 + 4) << "1 s of work takes its 4 s";
  EXPECT_DOUBLE_EQ(beside_gather({{.share = 0.2, .loss = 0.5}, {.share = 0.8, .loss = 0}}), 2 + 4);
}

TEST(Jitter, IsTheMeanOfTheSlowestOfSoManyRanks) {
  // Harter, Expected values of normal order statistics, Biometrika 48 (1961).
  EXPECT_NEAR(slowest_of(1), 0, 1e-9);
  EXPECT_NEAR(slowest_of(2), 0.56419, 1e-4);
  EXPECT_NEAR(slowest_of(8), 1.42360, 1e-4);
  EXPECT_NEAR(slowest_of(100), 2.50759, 1e-4);
  for (int ranks = 1; ranks < 100'000; ranks *= 4) EXPECT_LT(slowest_of(ranks), slowest_of(4 * ranks));
}

const Schedule& schedule() {
  static const Schedule one = test::schedule_of({.name = "", .overrides = {"zero.stage=3"}, .ranks = 4});
  return one;
}

/// Of all tasks with passes of kernels.
double pass_seconds(const MachineProfile& machine, int ranks = 4) {
  const auto seconds = task_seconds(schedule(), machine, {.mesh = {{1, 1, ranks, 1, 1, 1}}, .ranks_per_node = 2});
  double all = 0;
  for (std::size_t s = 0; s < seconds.size(); ++s)
    for (std::size_t t = 0; t < seconds[s].size(); ++t)
      if (std::holds_alternative<RunPass>(schedule().sections[s].tasks[t].op)) all += seconds[s][t] - machine.task_overhead;
  return all;
}

MachineProfile quick_calls() {
  MachineProfile m = test::small_machine();
  m.least_call = m.launch = 0;
  return m;
}

TEST(Losses, KernelsTakeTheShareOfTheirRatesThatProgramsReach) {
  MachineProfile m = quick_calls();
  const double plain = pass_seconds(m);
  m.efficiency = {.low = 0.5, .likely = 0.8, .high = 1};
  EXPECT_NEAR(pass_seconds(m), plain / 0.8, 1e-9 * plain);
  m.efficiency = {}, m.jitter = 0.1;
  EXPECT_NEAR(pass_seconds(m), plain * (1 + 0.1 * slowest_of(4)), 1e-9 * plain);
  EXPECT_LT(pass_seconds(m), pass_seconds(m, 64)) << "of more ranks one is slower";
}

TEST(Losses, ALimitOfPowerSlowsProductsDown) {
  MachineProfile m = quick_calls();
  const double plain = pass_seconds(m);
  m.power = {.limit = 500, .rated = 700, .exponent = 0.4};
  EXPECT_GT(pass_seconds(m), plain);
  EXPECT_LE(pass_seconds(m), plain * std::pow(1.4, 0.4) * (1 + 1e-9)) << "passes over memory as before";
  m.power.limit = 700;
  EXPECT_DOUBLE_EQ(pass_seconds(m), plain);
}

TEST(Losses, EachSectionIsLaunchedOnce) {
  MachineProfile m = quick_calls();
  const Placement placement{.mesh = {{1, 1, 4, 1, 1, 1}}, .ranks_per_node = 2};
  const auto before = task_seconds(schedule(), m, placement);
  m.launch = 1;
  const auto after = task_seconds(schedule(), m, placement);
  for (std::size_t s = 0; s < before.size(); ++s) {
    double more = 0;
    bool computes = false;
    for (std::size_t t = 0; t < before[s].size(); ++t) {
      more += after[s][t] - before[s][t];
      computes |= schedule().sections[s].tasks[t].lane == Lane::compute;
    }
    EXPECT_NEAR(more, computes ? 1 : 0, 1e-9);
  }
}

Schedule of_codes() {
  return test::schedule_of(
      {.name = "",
       .overrides = {"run.device=cuda", "precision.compute=bf16", "precision.fp8=tensorwise", "model.layers=2", "batch.sequence_length=32"},
       .ranks = 1});
}

TEST(Fp8, ProductsOfCodesGoAtTheirOwnRatesOrAreRefused) {
  MachineProfile m = test::small_machine();
  m.device = "cuda", m.least_call = 0;
  const Schedule schedule = of_codes();
  const auto sum = [&](const MachineProfile& machine) {
    double all = 0;
    for (const auto& section : task_seconds(schedule, machine, {.mesh = {{1, 1, 1, 1, 1, 1}}}))
      for (const double seconds : section) all += seconds;
    return all;
  };
  try {
    sum(m);
    FAIL() << "without rates";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::usage);
    EXPECT_NE(std::string(error.what()).find("has no [gemm.fp8]"), std::string::npos) << error.what();
  }
  m.fp8.peak = 2e11;
  m.fp8.forward = m.fp8.input_gradient = m.fp8.weight_gradient = {.axes = {}, .rates = {1e9}};
  MachineProfile faster = m;
  for (RateGrid* grid : {&faster.fp8.forward, &faster.fp8.input_gradient, &faster.fp8.weight_gradient}) grid->rates = {2e9};
  EXPECT_LT(sum(faster), sum(m));
  const Figures figures = figures_of(schedule, m, {.mesh = {{1, 1, 1, 1, 1, 1}}});
  EXPECT_NE(std::ranges::find(figures.used, "gemm.fp8.forward"), figures.used.end());
}

TEST(Fp8, IsFasterThanBf16OnShippedGpusThatHaveIt) {
  const std::string inputs = std::string(TESSERA_SOURCE_DIR) + "/inputs/";
  for (const char* name : {"h100_8", "h200_8", "b200_8"}) {
    const MachineProfile machine = require_machine(name);
    const auto seconds = [&](const char* recipe) {
      const Deck deck = require_deck(
          parse_deck(inputs + "train_7b.toml", {"run.device=cuda", std::string("precision.fp8=") + recipe, "model.layers=4"}, 8));
      const Placement placement{.mesh = make_mesh(deck, 8), .ranks_per_node = 8};
      return choice_as_is(deck, machine, placement, [](const Deck&) { return MemoryLimits{}; })->prediction.step.seconds;
    };
    // 1.28 times in torchtitan's runs, 1.34 in NVIDIA's (inputs/published/runs.toml).
    const double gain = seconds("none") / seconds("tensorwise");
    EXPECT_GT(gain, 1.1) << name;
    EXPECT_LT(gain, 1.7) << name;
  }
}

}  // namespace
}  // namespace tessera::losses_test
