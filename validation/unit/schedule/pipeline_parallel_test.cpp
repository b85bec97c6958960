// Stages of a pipeline: which layers they have, in which order they work, what they send, and that all of it fits together.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "schedule/build/micro_batches.hpp"
#include "schedule/plan/cross_check.hpp"
#include "schedules.hpp"

namespace tessera {
namespace {

std::vector<std::int64_t> cut_of(std::vector<std::string> overrides, int pp, int dp = 1) {
  overrides.push_back(fmt::format("mesh.pp={}", pp));
  return layers_of_stages(test::tiny_deck(overrides, pp * dp), {{pp, dp, 1, 1, 1}});
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

TEST(Stages, TheDeckSaysThem) {
  EXPECT_EQ(cut_of({"model.layers=6", "pipeline.layers=[1,2,3]"}, 3), (std::vector<std::int64_t>{1, 2, 3}));
  const Deck deck = test::tiny_deck({"model.layers=6", "pipeline.layers=[1,2,3]", "mesh.pp=3"}, 6);
  const Stage last = stage_of(deck, {{3, 2, 1, 1, 1}}, 5);
  EXPECT_EQ(last.number, 2);
  EXPECT_EQ(last.layers.begin, 3);
  EXPECT_EQ(last.layers.end, 6);
}

// Every micro-batch goes forward and then backward, in order, and no more are under way than was said.
TEST(OneForwardOneBackward, EachMicroBatchOnceInOrder) {
  for (int stages = 1; stages <= 5; ++stages)
    for (int number = 0; number < stages; ++number)
      for (std::int64_t A = 1; A <= 9; ++A)
        for (const bool apart : {false, true}) {
          const Stage stage{.number = number, .count = stages, .layers = {}};
          std::int64_t forward = 0, backward = 0, most = 0, firsts = 0, lasts = 0;
          for (const PipelinePhase& phase : one_forward_one_backward(stage, A, apart))
            for (std::int64_t r = 0; r < phase.repeat; ++r) {
              const std::int64_t micro = phase.micro + r;
              if (phase.forward) {
                ASSERT_EQ(micro + phase.ahead, forward++);
              }
              most = std::max(most, forward - backward);
              if (!phase.backward) continue;
              ASSERT_EQ(micro, backward++);
              ASSERT_EQ(phase.first, micro == 0);
              ASSERT_EQ(phase.last, micro == A - 1);
              firsts += phase.first, lasts += phase.last;
            }
          EXPECT_EQ(forward, A);
          EXPECT_EQ(backward, A);
          EXPECT_EQ(firsts, 1);
          EXPECT_EQ(lasts, 1);
          EXPECT_EQ(most, in_flight(stage, A)) << stages << " " << number << " " << A;
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
  EXPECT_EQ(std::ssize(roles), GetParam().pp * GetParam().tp);
}

TEST_P(Pipeline, TheOptimizerTouchesEveryElementAsOftenAsItIsKept) {
  const BuildRequest first = request(0);
  std::vector<std::vector<int>> count;
  for (const Parameter& p : first.layout.table) count.emplace_back(static_cast<std::size_t>(p.shape.elements()), 0);
  for (int rank = 0; rank < GetParam().ranks; ++rank) {
    const BuildRequest mine = request(rank);
    const Schedule schedule = build_schedule(mine);
    const Program& program = schedule.updates_late() ? schedule.update : schedule.train;
    for (const auto& phase : program.phases)
      for (const Task& task : schedule.sections[static_cast<std::size_t>(phase.section)].tasks)
        if (const auto* step = std::get_if<OptimizerStep>(&task.op))
          for (const Piece& piece : step->pieces) {
            const Unit& unit = *std::ranges::find_if(mine.layout.units, [&](const Unit& u) { return task.name == "optimizer " + u.name; });
            for_each_run(mine.layout, unit, piece, [&](const NaturalRun& run) {
              for (std::int64_t i = 0; i < run.elements; ++i)
                ++count[static_cast<std::size_t>(piece.parameter)][static_cast<std::size_t>(run.tensor_offset + i)];
            });
          }
  }
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
  const std::int64_t A = accumulation_steps(mine.deck, mine.data.size), n = in_flight(mine.stage, A);
  int kept = 0;
  for (const Buffer& buffer : schedule.buffers) {
    if (!buffer.name.starts_with("in_flight.")) continue;
    EXPECT_EQ(buffer.slots, n) << buffer.name;
    ++kept;
  }
  EXPECT_EQ(kept > 0, !mine.stage.last());
}

TEST_P(Pipeline, AStageHasWhatItsLayersNeed) {
  const BuildRequest mine = request(GetParam().rank);
  const Schedule schedule = build_schedule(mine);
  for (const Unit& unit : mine.layout.units)
    for (const Slot& slot : unit.slots) {
      const Parameter& p = mine.layout.table[static_cast<std::size_t>(slot.parameter)];
      if (p.layer >= 0) {
        EXPECT_TRUE(mine.stage.layers.begin <= p.layer && p.layer < mine.stage.layers.end) << p.name;
      }
    }
  EXPECT_EQ(schedule.find_buffer("tokens") >= 0, mine.stage.first());
  EXPECT_EQ(schedule.find_buffer("targets") >= 0, mine.stage.last());
}

// The last stage has the gradient of what both ends share long before the first one, which waits for all that goes there.
TEST_P(Pipeline, WhatBothEndsShareMeetsAfterAllThatStagesSend) {
  const BuildRequest mine = request(GetParam().rank);
  const Schedule schedule = build_schedule(mine);
  int meetings = 0;
  for (const auto& phase : schedule.train.phases) {
    bool met = false;
    for (const Task& task : schedule.sections[static_cast<std::size_t>(phase.section)].tasks) {
      EXPECT_FALSE(met && std::holds_alternative<Transfer>(task.op)) << task.name;
      const auto* c = std::get_if<Collective>(&task.op);
      if (!c || !(c->axes & pipeline_ends) || task.lane != Lane::reduce) continue;
      EXPECT_EQ(phase.repeat, 1);
      met = true, ++meetings;
    }
  }
  const bool shares = mine.deck.model.tied && (mine.stage.first() || mine.stage.last());
  EXPECT_EQ(meetings > 0, shares);
}

INSTANTIATE_TEST_SUITE_P(Grid, Pipeline, testing::ValuesIn(test::pipeline_settings()), [](const auto& info) { return info.param.name; });

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
  std::swap(steady[exchanges[0]].name, steady[exchanges[1]].name);
  std::swap(steady[exchanges[0]].op, steady[exchanges[1]].op);
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
            {"`all-reduce loss, norm and flags`", "waits for ever for rank", "rank 1: `receive stream` of micro-batch 2"});
}

// A forward pass of a second and a backward one of two on each stage, all else in no time: nothing but the fill and the drain of 1F1B is
// lost, whatever slots and memory that tasks share make them wait for.
TEST(PlayedTogether, TheBubbleIsThatOf1F1B) {
  for (const int pp : {2, 3, 4})
    for (const int micros : {1, 2, 3, 5, 9}) {
      const std::vector<RunPlan> roles = plan_roles(
          test::request_of({.name = "",
                            .overrides = {"model.layers=4", fmt::format("mesh.pp={}", pp), fmt::format("batch.global={}", 2 * micros)},
                            .ranks = pp,
                            .pp = pp}));
      std::vector<std::vector<std::vector<double>>> seconds;
      for (const RunPlan& role : roles) {
        auto& of_role = seconds.emplace_back();
        for (const Section& section : role.schedule.sections) {
          auto& of_section = of_role.emplace_back();
          double forward = 1, backward = 2;  // all of a pass's time is its first task's
          for (const Task& task : section.tasks) {
            const auto* run = std::get_if<RunPass>(&task.op);
            of_section.push_back(run ? std::exchange(run->kind == PassKind::forward ? forward : backward, 0) : 0);
          }
        }
      }
      const PlayedTogether played = play_together(roles, ProgramKind::train, seconds);
      EXPECT_EQ(played.fault, "");
      EXPECT_DOUBLE_EQ(played.seconds, 3.0 * (micros + pp - 1)) << pp << " stages, " << micros << " micro-batches";
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
}  // namespace tessera
