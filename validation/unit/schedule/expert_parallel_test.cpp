// Schedules of expert-parallel ranks: who agrees on what, who owns what, what is exchanged around experts and beside what.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "instances.hpp"
#include "schedule/plan/cross_check.hpp"
#include "schedules.hpp"

namespace tessera::expert_parallel_test {
namespace {

class Experts : public testing::TestWithParam<test::Setting> {
 protected:
  BuildRequest request(int rank) const {
    test::Setting s = GetParam();
    s.rank = rank;
    return test::request_of(s);
  }
};

// They have unlike experts and do the same with them.
TEST_P(Experts, RanksThatDivideTheBatchRunTheSameSchedule) {
  std::map<int, Hash128> stages;
  const int each = GetParam().ranks / GetParam().pp;
  for (int rank = 0; rank < GetParam().ranks; ++rank) {
    const BuildRequest mine = request(rank);
    const auto [stage, fresh] = stages.try_emplace(rank / each, build_schedule(mine).hash());
    if (!fresh) {
      EXPECT_EQ(build_schedule(mine).hash(), stage->second) << rank;
    }
    EXPECT_EQ(mine.data.size, each);
    EXPECT_EQ(mine.others().size, GetParam().ep * GetParam().pp) << "who keeps other boxes";
  }
  EXPECT_EQ(std::ssize(stages), GetParam().pp);
}

TEST_P(Experts, RolesFitTogether) {
  const std::vector<RunPlan> roles = plan_roles(request(0));
  EXPECT_EQ(std::ssize(roles), GetParam().pp);
  EXPECT_EQ(cross_check(roles), "");
}

TEST_P(Experts, TheOptimizerTouchesEveryElementAsOftenAsItIsKept) {
  const BuildRequest first = request(0);
  const std::vector<std::vector<int>> count = test::updates_of(GetParam());
  const int dp = GetParam().ranks / GetParam().pp / GetParam().ep;
  for (std::size_t p = 0; p < count.size(); ++p) {
    const int keepers = first.layout.table[p].part == Part::experts ? dp : dp * GetParam().ep;
    for (const int n : count[p]) ASSERT_EQ(n, first.deck.zero.stage > 0 ? 1 : keepers) << first.layout.table[p].name;
  }
}

TEST_P(Experts, GradientsOfExpertsMeetOverTheirOwnGroup) {
  const BuildRequest mine = request(0);
  const Axes both = axes({Axis::dp, Axis::ep});
  const int dp = GetParam().ranks / GetParam().pp / GetParam().ep;
  for (const Unit& unit : mine.layout.units) {
    const bool experts = unit.name.ends_with(".experts");
    EXPECT_EQ(unit.owners, experts ? data_axes : both) << unit.name;
    EXPECT_EQ(unit.shards, experts ? dp : dp * GetParam().ep) << unit.name;
  }
  const Schedule schedule = build_schedule(mine);
  for (const Section& section : schedule.sections)
    for (const Task& task : section.tasks) {
      const auto* c = std::get_if<Collective>(&task.op);
      if (!c || (task.lane != Lane::reduce && task.lane != Lane::gather) || task.name.starts_with("all-reduce loss") ||
          task.name.starts_with("all-reduce counts") || task.name.starts_with("all-reduce router"))
        continue;
      EXPECT_EQ(c->axes, task.name.find(".experts") == std::string::npos ? both : data_axes) << task.name;
      EXPECT_TRUE(c->axes == both || dp > 1) << task.name << " over one rank";
    }
}

// Rows go to their experts and come back, in either direction; labels go once, and what weights count for comes back once.
TEST_P(Experts, EachLayerExchangesLabelsAndRows) {
  const Schedule schedule = build_schedule(request(0));
  const ModelShape& s = schedule.shape;
  const std::int64_t rows = s.expert_block() * s.C, labels = s.own_experts() + s.expert_block();
  std::map<std::string, std::vector<std::int64_t>> counts;  // by pass
  std::map<std::string, std::vector<DType>> types;
  for (const SegmentPass& pass : schedule.passes)
    if (const Exchange* x = exchange_of(schedule.segment_of(pass), pass)) {
      ASSERT_EQ(x->axis, Axis::ep);
      EXPECT_EQ(x->kind, CollectiveKind::all_to_all);
      EXPECT_EQ(x->times, 1);
      counts[pass.whole].push_back(x->count);
      types[pass.whole].push_back(x->dtype);
    }
  const std::vector<std::int64_t> once = {labels, rows, rows};
  std::vector<std::int64_t> forward = once;
  if (GetParam().evaluation > 0) forward.insert(forward.end(), once.begin(), once.end());
  EXPECT_EQ(counts["forward layers.0.moe"], forward);
  // The backward pass ends with what is its own, and begins with what was dropped.
  const std::vector<std::int64_t>& back = counts["backward layers.0.moe"];
  ASSERT_GE(back.size(), 3u);
  EXPECT_EQ(back.back(), rows);
  EXPECT_EQ(std::ranges::count(back, s.expert_block()), 1) << "gradients of weights";
  EXPECT_EQ(types["backward layers.0.moe"].back(), s.dtype);
  EXPECT_EQ(counts.count("forward layers.0.attention"), 0u);
  for (const Section& section : schedule.sections)
    for (const Task& task : section.tasks)
      if (task.lane == Lane::experts) {
        const double all = static_cast<double>(task.uses[0].bytes);
        EXPECT_EQ(task.uses[0].bytes, task.uses[1].bytes);
        EXPECT_DOUBLE_EQ(task.bytes_moved, all * (GetParam().ep - 1) / GetParam().ep) << task.name;
      }
}

INSTANTIATE_TEST_SUITE_P(Grid, Experts, testing::ValuesIn(test::expert_settings()), [](const auto& info) { return info.param.name; });

/// Beside ranks of tp and cp, which have the same experts.
class ExpertsBeside : public Experts {
 protected:
  int of_stage() const { return GetParam().ranks / GetParam().pp; }
};

TEST_P(ExpertsBeside, RolesFitTogether) {
  const std::vector<RunPlan> roles = plan_roles(request(0));
  EXPECT_EQ(std::ssize(roles), GetParam().pp * GetParam().tp * GetParam().cp);
  EXPECT_EQ(cross_check(roles), "");
}

TEST_P(ExpertsBeside, AnElementIsUpdatedOnceByThoseWhoShareIt) {
  const BuildRequest first = request(0);
  const std::vector<std::vector<int>> count = test::updates_of(GetParam());
  for (std::size_t p = 0; p < count.size(); ++p) {
    const Parameter& parameter = first.layout.table[p];
    const int parts = parameter.part == Part::experts ? GetParam().ep : parameter.tp_dim >= 0 ? GetParam().tp : 1;
    const int often = !parameter.trained ? 0 : first.deck.zero.stage > 0 ? 1 : of_stage() / parts;
    for (const int n : count[p]) ASSERT_EQ(n, often) << parameter.name;
  }
}

// An expert's gradient is a sum over all ranks that have it, and so is what no axis cuts.
TEST_P(ExpertsBeside, UnitsAreOwnedByAllThatHaveThem) {
  const BuildRequest mine = request(0);
  const auto [tp, ep] = std::pair(GetParam().tp, GetParam().ep);
  for (const Unit& unit : mine.layout.units) {
    const bool experts = unit.name.ends_with(".experts"),
               uncut = unit.name == "replicated" || unit.name == "untrained" || unit.name.ends_with(".shared");
    EXPECT_EQ(unit.shards, of_stage() / (experts ? ep : uncut ? 1 : tp)) << unit.name;
    EXPECT_EQ(contains(unit.owners, Axis::tp), tp > 1 && (experts || uncut)) << unit.name;
    EXPECT_EQ(contains(unit.owners, Axis::ep), ep > 1 && !experts) << unit.name;
    EXPECT_EQ(unit.persistent, unit.name == "replicated" || unit.name == "persistent") << unit.name;
    for (const Slot& slot : unit.slots) {
      const Parameter& p = mine.layout.table[static_cast<std::size_t>(slot.parameter)];
      if (p.part == Part::shared && tp > 1 && (mine.deck.zero.stage < 3 || p.shape.elements() > 100)) {
        EXPECT_TRUE(unit.name.ends_with(".shared")) << p.name;
      }
      if (p.part == Part::experts || p.part == Part::shared) {
        EXPECT_EQ(slot.box, whole_box(p.shape)) << p.name << " is cut";
      }
    }
  }
}

// Choices of a whole micro-batch are counted, once a pass; rows of experts are this rank's.
TEST_P(ExpertsBeside, CountsMeetOverTheAxesThatCutTheTokens) {
  const BuildRequest mine = request(0);
  const Schedule schedule = build_schedule(mine);
  const ModelShape s = on_own_rows(cut_over_tp(schedule.shape, GetParam().tp, 0));
  EXPECT_EQ(s.tokens(), 24 / GetParam().tp / GetParam().cp);
  std::map<std::string, std::vector<std::pair<Axis, std::int64_t>>> gathers;
  for (const SegmentPass& pass : schedule.passes)
    if (const Exchange* x = exchange_of(schedule.segment_of(pass), pass);
        x && pass.whole.ends_with(".moe") && x->kind == CollectiveKind::all_gather && pass.kind == PassKind::forward)
      gathers[pass.whole].emplace_back(x->axis, x->count);
  std::vector<std::pair<Axis, std::int64_t>> expected;
  for (int passes = GetParam().evaluation > 0 ? 2 : 1; passes > 0; --passes) {
    if (GetParam().tp > 1) expected.emplace_back(Axis::tp, 4);
    if (GetParam().cp > 1) expected.emplace_back(Axis::cp, 4 * GetParam().tp);
  }
  const int layer = mine.stage.count == 1 ? 0 : static_cast<int>(mine.stage.layers.front().begin);
  EXPECT_EQ(gathers[fmt::format("forward layers.{}.moe", layer)], expected);
}

// Biases of a stage's layers move once a step, after its loads have met and it is known whether the step counts, and never in an
// evaluation.
TEST_P(ExpertsBeside, BiasesMoveByTheLoadsOfAllRanks) {
  const BuildRequest mine = request(GetParam().rank);
  const Schedule schedule = build_schedule(mine);
  std::vector<std::string> last;
  std::set<std::int64_t> layers;
  for (const auto& phase : schedule.program(ProgramKind::train).phases)
    for (const Task& task : schedule.sections[static_cast<std::size_t>(phase.section)].tasks) {
      const auto* op = std::get_if<BalanceRouters>(&task.op);
      const auto* c = std::get_if<Collective>(&task.op);
      if (task.name == "all-reduce router totals") {
        EXPECT_EQ(c->axes, mine.axes());
      }
      if (op || task.name == "all-reduce router totals" || task.name == "norm, clip factor and learning rate") last.push_back(task.name);
      if (!op) continue;
      EXPECT_EQ(op->experts, 4);
      for (const auto& run : op->runs)
        for (std::int64_t l = 0; l < run.layers; ++l) {
          EXPECT_TRUE(layers.insert(run.layer + l).second) << "twice";
          const TensorRef at = mine.layout.find(fmt::format("layers.{}.moe.router_bias", run.layer + l));
          EXPECT_EQ(at.offset, run.offset + l * op->stride);
          EXPECT_GE(mine.stage.count == 1 ? 0 : mine.stage.chunk_of(static_cast<int>(run.layer + l)), 0) << "of another stage";
        }
    }
  if (mine.deck.model.router_balance == RouterBalance::loss) {
    EXPECT_EQ(std::ssize(last), 2);
    EXPECT_EQ(mine.layout.units.back().trained, true);
    return;
  }
  EXPECT_EQ(last, (std::vector<std::string>{"all-reduce router totals", "norm, clip factor and learning rate", "balance routers"}));
  EXPECT_EQ(std::ssize(layers), mine.deck.model.layers / GetParam().pp);
  EXPECT_EQ(schedule.buffers[static_cast<std::size_t>(schedule.find_buffer("parameters.untrained"))].bytes,
            4 * mine.layout.units.back().elements)
      << "fp32 whatever the compute type";
  EXPECT_EQ(schedule.find_buffer("gradients.untrained"), -1);
  for (const auto& phase : schedule.program(ProgramKind::evaluate).phases)
    for (const Task& task : schedule.sections[static_cast<std::size_t>(phase.section)].tasks)
      EXPECT_FALSE(std::holds_alternative<BalanceRouters>(task.op));
}

INSTANTIATE_TEST_SUITE_P(Grid, ExpertsBeside, testing::ValuesIn(test::experts_beside_settings()),
                         [](const auto& info) { return info.param.name; });

/// Tasks of a training step that follow a given one in the list and do not wait for it, by what they are called.
std::map<std::string, int> beside_exchanges(const Schedule& schedule) {
  const MemoryPlan plan = place(schedule);
  const auto all = test::unroll(schedule, plan, order(schedule, plan, schedule.program(ProgramKind::train)));
  std::map<std::string, int> beside;
  for (std::size_t j = 0; j + 1 < all.size(); ++j)
    if (all[j].task->lane == Lane::experts && all[j + 1].task->lane == Lane::compute)
      beside[all[j].task->name] += all[j + 1].target[all[j].lane] <= all[j].number;
  return beside;
}

// While rows are on their way other work is done: a shared expert, gradients of weights.
TEST(ExpertsOverlap, ComputeRunsBesideTheExchanges) {
  const Schedule schedule = test::schedule_of(
      {.name = "", .overrides = {"model.experts=4", "model.shared_ff_width=24", "mesh.ep=2", "batch.global=4"}, .ranks = 2, .ep = 2});
  auto beside = beside_exchanges(schedule);
  EXPECT_EQ(beside["exchange out_blocks (forward layers.0.moe)"], 1) << "the shared expert";
  EXPECT_EQ(beside["exchange d_arrived_weights (backward layers.0.moe)"], 1) << "the gradient of down projections";
  EXPECT_EQ(beside["exchange d_blocks_there (backward layers.0.moe)"], 1) << "the gradient of up projections";
}

// The ranks of a stage are one role, which meets itself: what one of them exchanges otherwise makes another digest.
TEST(ExpertsCrossCheck, WhatIsExchangedIsInTheDigestOfARole) {
  const test::Setting s{
      .name = "", .overrides = {"model.experts=4", "mesh.ep=2", "mesh.pp=2", "batch.global=8"}, .ranks = 4, .pp = 2, .ep = 2};
  std::vector<RunPlan> roles = plan_roles(test::request_of(s));
  ASSERT_EQ(roles.size(), 2u);
  ASSERT_EQ(cross_check(roles), "");
  for (RunPlan& role : roles) {
    const Hash128 before = role.schedule.hash();
    for (Section& section : role.schedule.sections)
      for (Task& task : section.tasks)
        if (task.lane == Lane::experts) std::get<Collective>(task.op).count -= 1;
    EXPECT_NE(role.schedule.hash(), before);
  }
}

TEST(ExpertsOverlap, AloneNothingIsExchanged) {
  const Schedule schedule = test::schedule_of({.name = "", .overrides = {"model.experts=4", "batch.global=4"}, .ranks = 2});
  for (const Section& section : schedule.sections)
    for (const Task& task : section.tasks) EXPECT_NE(task.lane, Lane::experts) << task.name;
  for (const Buffer& buffer : schedule.buffers) {
    EXPECT_EQ(buffer.name.find("blocks"), std::string::npos) << buffer.name;
    EXPECT_EQ(buffer.name.find("arrived"), std::string::npos) << buffer.name;
  }
}

}  // namespace
}  // namespace tessera::expert_parallel_test
