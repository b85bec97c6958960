// Stages of a pipeline: which layers they have, in which order they work, what they send, and that all of it fits together.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "schedule/build/micro_batches.hpp"
#include "schedule/build/pipeline_order.hpp"
#include "schedule/plan/cross_check.hpp"
#include "schedules.hpp"

namespace tessera::pipeline_parallel_test {
namespace {

std::vector<std::int64_t> cut_of(std::vector<std::string> overrides, int pp, int dp = 1) {
  overrides.push_back(fmt::format("mesh.pp={}", pp));
  return layers_of_stages(test::tiny_deck(overrides, pp * dp), {{pp, 1, dp, 1, 1, 1}});
}

TEST(Stages, MakeUpTheLayersAndEachHasOne) {
  for (int layers = 1; layers <= 12; ++layers)
    for (int pp = 1; pp <= layers; ++pp) {
      const auto cut = cut_of({fmt::format("model.layers={}", layers)}, pp);
      EXPECT_EQ(std::ssize(cut), pp);
      EXPECT_EQ(std::accumulate(cut.begin(), cut.end(), std::int64_t{0}), layers);
      EXPECT_GE(std::ranges::min(cut), 1);
    }
}

// A vocabulary whose products cost as much as some layers do takes these layers' place on the last stage.
TEST(Stages, TheHeadCountsByItsFlops) {
  const auto without = cut_of({"model.layers=12", "model.vocab=61"}, 3), with = cut_of({"model.layers=12", "model.vocab=1024"}, 3);
  EXPECT_GE(without[2], 3);
  EXPECT_LT(with[2], without[2]);
  EXPECT_GE(with[0], with[2] + 2);
}

// Of cuts that take as long, the one whose fullest stage holds the least: the first one keeps the most micro-batches, and the embedding.
TEST(Stages, MemoryDecidesBetweenCutsOfEqualTime) {
  const auto cut = cut_of({"model.layers=7", "model.vocab=61", "batch.global=60"}, 3);
  EXPECT_EQ(std::ranges::max(cut), 3) << "7 layers on 3 stages";
  EXPECT_LT(cut[0], 3) << "the first stage holds activations of 3 micro-batches";
}

// Layers below the lowest trained tensor have a forward pass alone, a third of the work: the first stage, on which the backward pass ends,
// takes more of them.
TEST(Stages, FrozenLayersCostLess) {
  const std::vector<std::string> frozen = {
      "model.layers=12", "model.vocab=61",
      R"(model.freeze=["embedding.*", "layers.0.*", "layers.1.*", "layers.2.*", "layers.3.*", "layers.4.*", "layers.5.*"])"};
  const auto cut = cut_of(frozen, 2), even = cut_of({"model.layers=12", "model.vocab=61"}, 2);
  EXPECT_EQ(even, (std::vector<std::int64_t>{6, 6}));
  EXPECT_EQ(cut, (std::vector<std::int64_t>{8, 4})) << "6 / 3 + 2 layers, and 4";
}

// First layers without experts cost what their one block costs: here as much as three of the others.
TEST(Stages, LayersWithoutExpertsCostTheirOwn) {
  const std::vector<std::string> experts = {"model.layers=12", "model.vocab=61", "model.experts=2", "model.experts_per_token=1",
                                            "model.expert_ff_width=8"};
  std::vector<std::string> some = experts;
  some.insert(some.end(), {"model.ff_width=400", "model.dense_layers=3"});
  const auto cut = cut_of(some, 2), even = cut_of(experts, 2);
  EXPECT_EQ(even, (std::vector<std::int64_t>{6, 6}));
  EXPECT_LT(cut[0], 4);
}

// And so do those between others: the dense ones are dear here, and each stage has as many.
TEST(Stages, LayersOfEachKindCostTheirOwn) {
  const std::vector<std::string> keys = {"model.layers=12",
                                         "model.vocab=61",
                                         "model.experts=2",
                                         "model.experts_per_token=1",
                                         "model.expert_ff_width=8",
                                         "model.ff_width=400",
                                         R"(model.kinds=[{ name = "D", experts = false }, { name = "E" }])"};
  const auto cut_by = [&](const char* pattern) {
    std::vector<std::string> all = keys;
    all.emplace_back(std::string("model.pattern=") + pattern);
    return cut_of(all, 2);
  };
  EXPECT_EQ(cut_by("DE"), (std::vector<std::int64_t>{6, 6}));
  EXPECT_LT(cut_by("DDDEEEEEEEEE")[0], 4);
  EXPECT_GT(cut_by("EEEEEEEEEDDD")[0], 8);
  std::vector<std::string> first = keys;
  first.back() = "model.dense_layers=3";
  EXPECT_EQ(cut_of(first, 2), cut_by("DDDEEEEEEEEE")) << "which says the same";
}

// An adapter costs all layers alike.
TEST(Stages, AdaptersLeaveTheCutEven) {
  EXPECT_EQ(cut_of({"model.layers=12", "model.vocab=61", "lora.rank=2"}, 3), cut_of({"model.layers=12", "model.vocab=61"}, 3));
}

TEST(Stages, TheDeckSaysThem) {
  EXPECT_EQ(cut_of({"model.layers=6", "pipeline.layers=[1,2,3]"}, 3), (std::vector<std::int64_t>{1, 2, 3}));
  const Deck deck = test::tiny_deck({"model.layers=6", "pipeline.layers=[1,2,3]", "mesh.pp=3"}, 6);
  const Stage last = stage_of(deck, {{3, 1, 2, 1, 1, 1}}, 5);
  EXPECT_EQ(last.number, 2);
  EXPECT_EQ(last.layers, (std::vector<Range>{{3, 6}}));
}

// Runs that are as even as may be must not leave stages uneven.
TEST(Stages, VirtualStagesShareTheLayersEvenly) {
  const auto cut = cut_of({"model.layers=20", "pipeline.schedule=interleaved", "model.vocab=61"}, 4);
  for (std::size_t s = 0; s < 4; ++s) {
    EXPECT_EQ(cut[s] + cut[s + 4], 5) << s;
    EXPECT_LE(std::max(cut[s], cut[s + 4]), 3) << s;
  }
}

// Run k is on stage k modulo the stages.
TEST(Stages, VirtualStagesTakeTurns) {
  const std::vector<std::string> keys = {"model.layers=9", "pipeline.schedule=interleaved", "pipeline.layers=[1,2,3,1,1,1]", "mesh.pp=2",
                                         "pipeline.virtual_stages=3"};
  const Deck deck = test::tiny_deck(keys, 2);
  EXPECT_EQ(stage_of(deck, {{2, 1, 1, 1, 1, 1}}, 0).layers, (std::vector<Range>{{0, 1}, {3, 6}, {7, 8}}));
  EXPECT_EQ(stage_of(deck, {{2, 1, 1, 1, 1, 1}}, 1).layers, (std::vector<Range>{{1, 3}, {6, 7}, {8, 9}}));
  EXPECT_EQ(stage_of(deck, {{2, 1, 1, 1, 1, 1}}, 1).chunk_of(6), 1);
  EXPECT_EQ(stage_of(deck, {{2, 1, 1, 1, 1, 1}}, 1).chunk_of(7), -1);
  for (int layers = 4; layers <= 12; ++layers) {
    const auto cut = cut_of({fmt::format("model.layers={}", layers), "pipeline.schedule=interleaved"}, 2);
    EXPECT_EQ(std::ssize(cut), 4);
    EXPECT_EQ(std::accumulate(cut.begin(), cut.end(), std::int64_t{0}), layers);
    EXPECT_GE(std::ranges::min(cut), 1);
  }
}

class Pipeline : public testing::TestWithParam<test::Setting> {
 protected:
  BuildRequest request(int rank) const {
    test::Setting s = GetParam();
    s.rank = rank;
    return test::request_of(s);
  }
};

TEST_P(Pipeline, RolesFitTogether) { EXPECT_EQ(cross_check(plan_roles(request(0))), ""); }

TEST_P(Pipeline, RanksOfARoleRunTheSame) {
  std::map<int, Hash128> roles;
  for (int rank = 0; rank < GetParam().ranks; ++rank) {
    const BuildRequest mine = request(rank);
    const auto [role, fresh] = roles.try_emplace(mine.data.world.front(), build_schedule(mine).hash());
    if (!fresh) {
      EXPECT_EQ(build_schedule(mine).hash(), role->second) << rank;
    }
  }
  EXPECT_EQ(std::ssize(roles), GetParam().pp * GetParam().tp * GetParam().cp);
}

TEST_P(Pipeline, TheOptimizerTouchesEveryElementAsOftenAsItIsKept) {
  const BuildRequest first = request(0);
  const std::vector<std::vector<int>> count = test::updates_of(GetParam());
  const test::Setting& s = GetParam();
  for (std::size_t p = 0; p < count.size(); ++p) {
    const Parameter& parameter = first.layout.table[p];
    const int ends = first.deck.model.tied && parameter.part == Part::embedding ? 2 : 1;
    const int copies = first.deck.zero.stage > 0 ? 1 : ends * s.ranks / s.pp / (parameter.tp_dim >= 0 ? s.tp : 1);
    for (const int n : count[p]) ASSERT_EQ(n, copies) << parameter.name;
  }
}

// Activations of as many micro-batches as are under way have a place, those of the last stage one.
TEST_P(Pipeline, SlotsAreThoseInFlight) {
  const BuildRequest mine = request(GetParam().rank);
  const Schedule schedule = build_schedule(mine);
  const std::int64_t A = accumulation_steps(mine.deck, mine.data.size);
  const auto flights = in_flight(pipeline_order(mine.deck.pipeline, mine.stage, A, false), mine.stage.chunks());
  const bool parted = mine.deck.pipeline.schedule == PipelineSchedule::zero_bubble && !mine.stage.first();
  std::set<std::int64_t> kept, waiting;
  for (const Buffer& buffer : schedule.buffers) {
    if (buffer.name.starts_with("in_flight.")) kept.insert(buffer.slots);
    if (buffer.name.starts_with("waiting")) waiting.insert(buffer.slots);
  }
  std::set<std::int64_t> possible;
  for (const InFlight& flight : flights) {
    if (flight.crosses) possible.insert(flight.to_backward);
    if (parted) possible.insert(flight.to_weights);
  }
  EXPECT_TRUE(std::ranges::includes(possible, kept));
  if (mine.deck.pipeline.schedule == PipelineSchedule::one_forward_one_backward) {
    EXPECT_EQ(!kept.empty(), !possible.empty());
  }
  EXPECT_EQ(waiting, parted ? std::set<std::int64_t>{std::min<std::int64_t>(A, mine.stage.number + 1)} : std::set<std::int64_t>{});
}

TEST_P(Pipeline, AStageHasWhatItsLayersNeed) {
  const BuildRequest mine = request(GetParam().rank);
  const Schedule schedule = build_schedule(mine);
  for (const Unit& unit : mine.layout.units)
    for (const Slot& slot : unit.slots) {
      const Parameter& p = mine.layout.table[static_cast<std::size_t>(slot.parameter)];
      if (p.layer >= 0) {
        EXPECT_GE(mine.stage.chunk_of(p.layer), 0) << p.name;
      }
    }
  EXPECT_EQ(schedule.find_buffer("tokens") >= 0, mine.stage.first());
  EXPECT_EQ(schedule.find_buffer("targets") >= 0, mine.stage.last());
}

// The last stage has the gradient of what both ends share long before the first one, which waits for all that goes there.
TEST_P(Pipeline, WhatBothEndsShareMeetsAfterAllThatStagesSend) {
  const BuildRequest mine = request(GetParam().rank);
  const Schedule schedule = build_schedule(mine);
  int reductions = 0;
  for (const auto& phase : schedule.program(ProgramKind::train).phases) {
    bool met = false;
    for (const Task& task : schedule.sections[static_cast<std::size_t>(phase.section)].tasks) {
      EXPECT_FALSE(met && std::holds_alternative<Transfer>(task.op)) << task.name;
      const auto* c = std::get_if<Collective>(&task.op);
      if (!c || !(c->axes & pipeline_ends) || task.lane != Lane::reduce) continue;
      EXPECT_EQ(phase.repeat, 1);
      met = true, ++reductions;
    }
  }
  // What follows on that lane would wait for the other end, and the other end, perhaps, for what follows.
  const auto& phases = schedule.program(ProgramKind::train).phases;
  for (std::size_t p = 0; p + 2 < phases.size(); ++p)
    for (const Task& task : schedule.sections[static_cast<std::size_t>(phases[p].section)].tasks)
      if (const auto* c = std::get_if<Collective>(&task.op); c && task.lane == Lane::reduce) {
        EXPECT_FALSE(c->axes & pipeline_ends) << task.name;
      }
  const bool shares = mine.deck.model.tied && (mine.stage.first() || mine.stage.last());
  EXPECT_EQ(reductions > 0, shares);
}

INSTANTIATE_TEST_SUITE_P(Grid, Pipeline, testing::ValuesIn(test::pipeline_settings()), [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Orders, Pipeline, testing::ValuesIn(test::ordered_settings()), [](const auto& info) { return info.param.name; });

/// Three stages of as many micro-batches as there may be.
std::vector<RunPlan> three_stages(int micros = 5) {
  return plan_roles(test::request_of(
      {.name = "", .overrides = {"model.layers=3", "mesh.pp=3", fmt::format("batch.global={}", 2 * micros)}, .ranks = 3, .pp = 3}));
}

/// The tasks of a rank's section, and one of them by name.
std::vector<Task>& tasks_of(RunPlan& role, const std::string& section) {
  return std::ranges::find_if(role.schedule.sections, [&](const Section& s) { return s.name == section; })->tasks;
}
std::size_t place_of(const std::vector<Task>& tasks, const std::string& name) {
  const auto found = std::ranges::find_if(tasks, [&](const Task& t) { return t.name == name; });
  EXPECT_NE(found, tasks.end()) << name;
  return static_cast<std::size_t>(found - tasks.begin());
}

void expect_in(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

TEST(CrossCheck, ASwappedSendIsNamedWithBothTasks) {
  std::vector<RunPlan> roles = three_stages();
  ASSERT_EQ(cross_check(roles), "");
  // Stage 1 sends the stream of another micro-batch than the one that stage 2 expects.
  std::vector<Task>& steady = tasks_of(roles[1], "micro-batch");
  std::get<Transfer>(steady[place_of(steady, "send stream")].op).ahead = 0;
  expect_in(cross_check(roles), {"rank 1: `send stream` of micro-batch 1", "rank 2: `receive stream` of micro-batch 2", "do not match"});
}

TEST(CrossCheck, AMissingReceiveIsNamedWithBothTasks) {
  std::vector<RunPlan> roles = three_stages();
  std::vector<Task>& last = tasks_of(roles[2], "last micro-batch");
  last.erase(last.begin() + static_cast<std::ptrdiff_t>(place_of(last, "receive stream")));
  expect_in(cross_check(roles), {"rank 1: `send stream` of micro-batch 4", "rank 2, whose lane streams has ended"});
}

TEST(CrossCheck, AMissingSendIsNamedWithBothTasks) {
  std::vector<RunPlan> roles = three_stages();
  std::vector<Task>& last = tasks_of(roles[2], "last micro-batch");
  last.erase(last.begin() + static_cast<std::ptrdiff_t>(place_of(last, "send gradient")));
  expect_in(cross_check(roles), {"rank 1: `receive gradient` of micro-batch 4", "rank 2, whose lane stream_gradients has ended"});
}

TEST(CrossCheck, ASendToTheWrongStageIsNamed) {
  std::vector<RunPlan> roles = three_stages();
  std::vector<Task>& steady = tasks_of(roles[1], "micro-batch");
  std::get<Transfer>(steady[place_of(steady, "send stream")].op).peer = 0;
  expect_in(cross_check(roles), {"rank 1: `send stream`", "to rank 0", "rank 0: `send stream`", "do not match"});
}

TEST(CrossCheck, OtherSizesAreNamed) {
  std::vector<RunPlan> roles = three_stages();
  std::vector<Task>& steady = tasks_of(roles[0], "micro-batch");
  std::get<Transfer>(steady[place_of(steady, "send stream")].op).count -= 1;
  expect_in(cross_check(roles), {"rank 0: `send stream` of micro-batch 3", "767 ", "rank 1: `receive stream` of micro-batch 3", "768 "});
}

// Collectives of tensor-parallel ranks of a stage, in another order on one of them.
TEST(CrossCheck, CollectivesInAnotherOrderAreNamed) {
  std::vector<RunPlan> roles = plan_roles(test::request_of(
      {.name = "", .overrides = {"mesh.pp=2", "mesh.tp=2", "zero.overlap_comm=true", "batch.global=8"}, .ranks = 4, .tp = 2, .pp = 2}));
  ASSERT_EQ(roles.size(), 4u);
  ASSERT_EQ(cross_check(roles), "");
  std::vector<Task>& steady = tasks_of(roles[3], "micro-batch");
  std::vector<std::size_t> exchanges;
  for (std::size_t t = 0; t < steady.size(); ++t)
    if (steady[t].lane == Lane::tensor) exchanges.push_back(t);
  steady[exchanges[1]].name = std::exchange(steady[exchanges[0]].name, steady[exchanges[1]].name);
  steady[exchanges[1]].op = std::exchange(steady[exchanges[0]].op, steady[exchanges[1]].op);
  expect_in(cross_check(roles), {"rank 2: `", "rank 3: `", "do not match"});
}

// A sum over all stages that one of them comes to before it sends what the next one needs to come to it.
TEST(CrossCheck, RanksThatWaitForEachOtherAreNamed) {
  std::vector<RunPlan> roles = three_stages();
  const std::string name = "all-reduce loss, norm and flags";
  for (RunPlan& role : roles) {
    std::vector<Task>& end = tasks_of(role, "end");
    end[place_of(end, name)].lane = Lane::streams;
  }
  EXPECT_EQ(cross_check(roles), "");
  std::vector<Task>&end = tasks_of(roles[0], "end"), &steady = tasks_of(roles[0], "first micro-batch");
  steady.insert(steady.begin(), end[place_of(end, name)]);
  end.erase(end.begin() + static_cast<std::ptrdiff_t>(place_of(end, name)));
  expect_in(cross_check(roles),
            {"`all-reduce loss, norm and flags`", "waits forever for rank", "rank 1: `receive stream` of micro-batch 2"});
}

// A run of layers sends its stream to the wrong one of the next stage.
TEST(CrossCheck, ASwappedSendBetweenVirtualStagesIsNamedWithBothTasks) {
  const auto interleaved = [] {
    return plan_roles(test::request_of({.name = "",
                                        .overrides = {"model.layers=4", "mesh.pp=2", "pipeline.schedule=interleaved", "batch.global=8"},
                                        .ranks = 2,
                                        .pp = 2}));
  };
  std::vector<RunPlan> roles = interleaved();
  ASSERT_EQ(cross_check(roles), "");
  std::vector<Task>& first = tasks_of(roles[0], "forward 0");
  std::get<Transfer>(first[place_of(first, "send stream")].op).border = 3;
  expect_in(cross_check(roles), {"rank 0: `send stream` of micro-batch 0", "to rank 1, before virtual stage 3",
                                 "rank 1: `receive stream` of micro-batch 0", "from rank 0, before virtual stage 1", "do not match"});
  // A stage that sends back to the first on the lane of the other links.
  roles = interleaved();
  for (Section& section : roles[1].schedule.sections)
    for (Task& task : section.tasks)
      if (task.lane == Lane::wrapped_streams) task.lane = Lane::streams;
  expect_in(cross_check(roles), {"rank 0: `send stream` of micro-batch 1", "rank 1: `send stream` of micro-batch 0", "do not match"});
}

/// What a pass of a stage takes, all of it in its first task.
struct Seconds {
  double forward = 1, inputs = 1, weights = 1;
};

PlayedTogether play(const std::vector<std::string>& keys, int pp, int micros, const Seconds& takes) {
  std::vector<std::string> overrides = {"model.layers=8", fmt::format("mesh.pp={}", pp), fmt::format("batch.global={}", 2 * micros)};
  overrides.insert(overrides.end(), keys.begin(), keys.end());
  const std::vector<RunPlan> roles = plan_roles(test::request_of({.name = "", .overrides = overrides, .ranks = pp, .pp = pp}));
  std::vector<std::vector<std::vector<double>>> seconds;
  for (const RunPlan& role : roles) {
    const auto& passes = role.schedule.passes;
    const bool parts = std::ranges::any_of(passes, [](const SegmentPass& p) { return p.kind == PassKind::weights; });
    auto& of_role = seconds.emplace_back();
    for (const Section& section : role.schedule.sections) {
      auto& of_section = of_role.emplace_back();
      double forward = takes.forward, backward = takes.inputs + (parts ? 0 : takes.weights), weights = takes.weights;
      for (const Task& task : section.tasks) {
        const auto* run = std::get_if<RunPass>(&task.op);
        of_section.push_back(!run                             ? 0
                             : run->kind == PassKind::forward ? std::exchange(forward, 0)
                             : run->kind == PassKind::weights ? std::exchange(weights, 0)
                                                              : std::exchange(backward, 0));
      }
    }
  }
  return play_together(roles, ProgramKind::train, seconds);
}

// All else in no time: nothing but the fill and the drain of a schedule is lost, whatever slots and memory that tasks share make them wait
// for.
TEST(PlayedTogether, TheBubbleIsThatOf1F1B) {
  for (const int pp : {2, 3, 4})
    for (const int micros : {1, 2, 3, 5, 9}) {
      const PlayedTogether played = play({}, pp, micros, {});
      EXPECT_EQ(played.fault, "");
      EXPECT_DOUBLE_EQ(played.seconds, 3.0 * (micros + pp - 1)) << pp << " stages, " << micros << " micro-batches";
    }
}

// (p - 1)(tf + tb - tw), in place of 1F1B's (p - 1)(tf + tb + tw).
TEST(PlayedTogether, GradientsOfWeightsFillTheBubble) {
  for (const Seconds& takes : {Seconds{1, 1, 1}, Seconds{2, 3, 1}, Seconds{2, 2, 2}})
    for (const int pp : {2, 3, 4})
      for (const int micros : {1, 2, 3, 4, 5, 9}) {
        const PlayedTogether played = play({"pipeline.schedule=zero_bubble"}, pp, micros, takes);
        EXPECT_EQ(played.fault, "");
        const double work = micros * (takes.forward + takes.inputs + takes.weights);
        const double bubble = (pp - 1) * (takes.forward + takes.inputs - takes.weights);
        if (micros >= pp) {
          EXPECT_DOUBLE_EQ(played.seconds, work + bubble) << pp << " stages, " << micros << " micro-batches";
        }
        EXPECT_LT(played.seconds, work + (pp - 1) * (takes.forward + takes.inputs + takes.weights)) << pp << " " << micros;
      }
}

// (p - 1)(tf + tb) of one run of layers: of all of a stage's, over as many runs.
TEST(PlayedTogether, VirtualStagesDivideTheBubble) {
  for (const int pp : {2, 3, 4, 8})
    for (const int runs : {2, 3})
      for (int micros = 1; micros < 24; ++micros) {
        const PlayedTogether played = play(
            {"pipeline.schedule=interleaved", fmt::format("pipeline.virtual_stages={}", runs), fmt::format("model.layers={}", runs * pp)},
            pp, micros, {});
        EXPECT_EQ(played.fault, "");
        if (micros >= pp) {
          EXPECT_DOUBLE_EQ(played.seconds, 3.0 * (micros * runs + pp - 1)) << pp << " stages, " << runs << " runs, " << micros;
        } else {
          EXPECT_LE(played.seconds, 3.0 * runs * (micros + pp - 1)) << pp << " stages, " << runs << " runs, " << micros;
        }
      }
}

TEST(CrossCheck, FourThousandRanks) {
  const BuildRequest request = test::request_of({.name = "",
                                                 .overrides = {"model.layers=32", "model.heads=8", "model.kv_heads=8", "model.head_dim=4",
                                                               "mesh.pp=16", "mesh.tp=8", "batch.global=2048", "zero.stage=1"},
                                                 .ranks = 4096,
                                                 .tp = 8,
                                                 .pp = 16});
  const std::vector<RunPlan> roles = plan_roles(request);
  EXPECT_EQ(roles.size(), 128u);
  EXPECT_EQ(cross_check(roles), "");
}

}  // namespace
}  // namespace tessera::pipeline_parallel_test
