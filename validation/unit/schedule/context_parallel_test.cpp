// Schedules of context-parallel ranks: who agrees on what, who owns what, what is exchanged around attention and beside what.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "instances.hpp"
#include "schedule/build/describe_mesh.hpp"
#include "schedule/plan/cross_check.hpp"
#include "schedules.hpp"

namespace tessera::context_parallel_test {
namespace {

constexpr Axes context = axes({Axis::cp}), tensor = axes({Axis::tp});

class Context : public testing::TestWithParam<test::Setting> {
 protected:
  BuildRequest request(int rank) const {
    test::Setting s = GetParam();
    s.rank = rank;
    return test::request_of(s);
  }
  Axes owners() const { return static_cast<Axes>(data_axes | context); }
};

class ContextByHeads : public Context {};
class ContextInARing : public Context {};

// They have the same weights and do the same with other tokens.
TEST_P(Context, RanksAlongTheAxisRunTheSameSchedule) {
  std::map<int, Hash128> by_role;  // place along tp
  for (int rank = 0; rank < GetParam().ranks; ++rank) {
    const auto [role, fresh] = by_role.try_emplace(rank % GetParam().tp, build_schedule(request(rank)).hash());
    if (!fresh) {
      EXPECT_EQ(build_schedule(request(rank)).hash(), role->second) << rank;
    }
    EXPECT_EQ(request(rank).others().size, GetParam().tp);
  }
}

TEST_P(Context, TheOptimizerTouchesEveryElementOfEveryTensorOnce) {
  const BuildRequest first = request(0);
  const std::vector<std::vector<int>> count = test::updates_of(GetParam());
  for (std::size_t p = 0; p < count.size(); ++p) {
    const int copies = first.deck.zero.stage > 0 ? 1 : GetParam().ranks / (first.layout.table[p].tp_dim >= 0 ? GetParam().tp : 1);
    for (const int n : count[p]) ASSERT_EQ(n, copies) << first.layout.table[p].name;
  }
}

TEST_P(Context, GradientsAndGatheredUnitsAreThoseOfBothAxes) {
  const BuildRequest mine = request(0);
  for (const Unit& unit : mine.layout.units) {
    const bool replicated = unit.name == "replicated";
    EXPECT_EQ(unit.owners, replicated ? owners() | tensor : owners()) << unit.name;
    EXPECT_EQ(unit.shards, replicated ? GetParam().ranks : GetParam().ranks / GetParam().tp) << unit.name;
  }
  std::set<std::string> met;
  const Schedule schedule = build_schedule(mine);
  for (const Section& section : schedule.sections)
    for (const Task& task : section.tasks) {
      const auto* c = std::get_if<Collective>(&task.op);
      if (!c || (task.lane != Lane::reduce && task.lane != Lane::gather)) continue;
      const bool all = task.name == "all-reduce counts of the batch" || task.name == "all-reduce loss, norm and flags" ||
                       task.name.find("replicated") != std::string::npos;
      EXPECT_EQ(c->axes, GetParam().tp > 1 && all ? owners() | tensor : owners()) << task.name;
      met.insert(task.name);
    }
  EXPECT_GE(met.size(), 3u);
}

// Blocks of keys and values go round in both passes, and gradients of them with them and home at the end.
TEST_P(ContextInARing, EachAttentionSendsBlocksToTheNext) {
  const Schedule schedule = build_schedule(request(0));
  const ModelShape shape = cut_over_tp(schedule.shape, GetParam().tp, 0);
  const std::int64_t block = shape.tokens() * 2 * shape.G * shape.D;
  std::map<std::string, std::vector<std::string>> sent;  // by pass
  for (const SegmentPass& pass : schedule.passes)
    if (const Exchange* x = exchange_of(schedule.segment_of(pass), pass); x && x->axis == Axis::cp) {
      EXPECT_EQ(x->kind, CollectiveKind::rotate);
      EXPECT_EQ(x->count, block);
      const bool gradient = pass.name.starts_with("rotate d_keys");
      EXPECT_EQ(x->dtype, gradient ? DType::f32 : shape.dtype);
      sent[pass.whole].push_back(pass.name.substr(0, pass.name.find(" (")));
    }
  std::vector<std::string> forward, backward{"rotate keys 1"};
  for (int step = 1; step < GetParam().cp; ++step) {
    forward.push_back(fmt::format("rotate keys {}", step));
    if (step + 1 < GetParam().cp) backward.push_back(fmt::format("rotate keys {}", step + 1));
    backward.push_back(fmt::format("rotate d_keys {}", step));
  }
  backward.push_back("rotate d_keys home");
  const auto twice = [](std::vector<std::string> names) {
    const std::vector<std::string> again = names;
    names.insert(names.end(), again.begin(), again.end());
    return names;
  };
  EXPECT_EQ(sent["forward layers.0.attention"], GetParam().evaluation > 0 ? twice(forward) : forward);
  std::vector<std::string>& back = sent["backward layers.1.attention"];
  ASSERT_GE(back.size(), backward.size());
  EXPECT_EQ(std::vector<std::string>(back.end() - std::ssize(backward), back.end()), backward);
  if (back.size() > backward.size()) {
    EXPECT_EQ(std::vector<std::string>(back.begin(), back.end() - std::ssize(backward)), forward) << "what is made again";
  }
  for (const Section& section : schedule.sections)
    for (const Task& task : section.tasks)
      if (task.lane == Lane::context) {
        EXPECT_EQ(task.uses[0].bytes, task.uses[1].bytes);
        EXPECT_DOUBLE_EQ(task.bytes_moved, static_cast<double>(task.uses[0].bytes)) << "all of it is sent";
      }
}

// With a window a layer passes over the blocks that nobody sees: what comes after them goes further at once.
TEST(ContextMesh, ARingGoesAsFarAsALayersWindow) {
  const test::Setting setting{
      .name = "",
      .overrides = {"mesh.cp=4", "context.method=ring", "batch.global=2", "batch.sequence_length=16", "model.layers=3", "model.pattern=LGO",
                    R"(model.kinds=[{ name = "L", window = 3 }, { name = "G" }, { name = "O", window = 1 }])"},
      .ranks = 4,
      .cp = 4};
  const BuildRequest request = test::request_of(setting);
  const Schedule schedule = build_schedule(request);
  std::map<std::string, std::vector<std::string>> sent;
  for (const SegmentPass& pass : schedule.passes)
    if (const Exchange* x = exchange_of(schedule.segment_of(pass), pass); x && x->axis == Axis::cp)
      sent[pass.whole].push_back(fmt::format("{} by {}", pass.name.substr(0, pass.name.find(" (")), x->by));
  using Names = std::vector<std::string>;
  EXPECT_EQ(sent["forward layers.0.attention"], (Names{"rotate keys 1 by 1", "rotate keys 3 by 2"}));
  EXPECT_EQ(sent["backward layers.0.attention"],
            (Names{"rotate keys 1 by 1", "rotate keys 3 by 2", "rotate d_keys 1 by 1", "rotate d_keys 3 by 2", "rotate d_keys home by 1"}));
  EXPECT_EQ(sent["forward layers.1.attention"], (Names{"rotate keys 1 by 1", "rotate keys 2 by 1", "rotate keys 3 by 1"}));
  EXPECT_EQ(sent["forward layers.2.attention"], Names());
  EXPECT_EQ(sent["backward layers.2.attention"], Names());
  std::set<int> by;
  for (const Section& section : schedule.sections)
    for (const Task& task : section.tasks)
      if (const auto* c = std::get_if<Collective>(&task.op); c && task.lane == Lane::context) by.insert(c->by);
  EXPECT_EQ(by, (std::set{1, 2})) << "tasks go as far";
  const std::vector<RunPlan> roles = plan_roles(request);
  EXPECT_EQ(std::ssize(roles), 4);
  EXPECT_EQ(cross_check(roles), "");
}

// Tokens go to heads before attention and heads to tokens after it, in either direction; each moves all of a rank's rows but its own part.
TEST_P(ContextByHeads, EachAttentionExchangesTwiceEachWay) {
  const BuildRequest mine = request(0);
  const Schedule schedule = build_schedule(mine);
  const ModelShape shape = cut_over_tp(schedule.shape, GetParam().tp, 0);
  const std::int64_t rows = shape.B * shape.T / GetParam().cp;
  std::map<std::string, std::vector<std::int64_t>> elements;  // of all blocks, by pass
  for (const SegmentPass& pass : schedule.passes)
    if (const Exchange* x = exchange_of(schedule.segment_of(pass), pass); x && x->axis == Axis::cp) {
      EXPECT_EQ(x->kind, CollectiveKind::all_to_all);
      EXPECT_EQ(x->times, shape.B);
      elements[pass.whole].push_back(x->count * x->times * GetParam().cp);
    }
  const std::int64_t keys = std::max<std::int64_t>(GetParam().cp, shape.G);  // heads, of which ranks may have the same
  const std::int64_t qkv = rows * (shape.H + 2 * keys) * shape.D, heads = rows * shape.H * shape.D;
  const std::vector<std::int64_t> once = {qkv, heads}, twice = {qkv, heads, qkv, heads};
  EXPECT_EQ(elements["forward layers.0.attention"], GetParam().evaluation > 0 ? twice : once);
  const std::vector<std::int64_t>& back = elements["backward layers.1.attention"];
  ASSERT_GE(back.size(), 2u);
  EXPECT_EQ(back.back(), qkv) << "the gradient of rows comes last";
  EXPECT_GE(std::ranges::count(back, heads), 1);
  EXPECT_EQ(elements.count("forward layers.0.mlp"), 0u);
  for (const Section& section : schedule.sections)
    for (const Task& task : section.tasks)
      if (task.lane == Lane::context) {
        const double all = static_cast<double>(task.uses[0].bytes);
        EXPECT_EQ(task.uses[0].bytes, task.uses[1].bytes);
        EXPECT_DOUBLE_EQ(task.bytes_moved, all * (GetParam().cp - 1) / GetParam().cp) << task.name;
      }
}

INSTANTIATE_TEST_SUITE_P(Grid, ContextByHeads, testing::ValuesIn(test::context_settings_of("ulysses")),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Grid, ContextInARing, testing::ValuesIn(test::context_settings_of("ring")),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Grid, Context, testing::ValuesIn(test::context_settings()), [](const auto& info) { return info.param.name; });

// While the gradient of a context is on its way to the heads, that of the output's weight is made.
TEST(ContextOverlap, AWeightGradientRunsBesideTheExchange) {
  const Schedule schedule = test::schedule_of({.name = "", .overrides = {"mesh.cp=2", "batch.global=2"}, .ranks = 2, .cp = 2});
  const MemoryPlan plan = place(schedule);
  const auto all = test::unroll(schedule, plan, order(schedule, plan, schedule.program(ProgramKind::train)));
  int beside = 0;
  for (std::size_t j = 0; j + 1 < all.size(); ++j) {
    if (!all[j].task->name.starts_with("exchange d_context_blocks (backward layers.")) continue;
    const auto* next = std::get_if<RunPass>(&all[j + 1].task->op);
    ASSERT_TRUE(next) << all[j + 1].task->name;
    beside += all[j + 1].target[all[j].lane] <= all[j].number;
  }
  EXPECT_EQ(beside, 2) << "of both layers";
}

// While a rank works on a block, the next one comes, and the gradient of the block on which it works.
TEST(ContextOverlap, ABlockComesWhileTheOneBeforeItIsWorkedOn) {
  const Schedule schedule =
      test::schedule_of({.name = "", .overrides = {"mesh.cp=3", "context.method=ring", "batch.global=2"}, .ranks = 3, .cp = 3});
  const MemoryPlan plan = place(schedule);
  const auto all = test::unroll(schedule, plan, order(schedule, plan, schedule.program(ProgramKind::train)));
  int beside = 0;
  for (std::size_t j = 0; j + 1 < all.size(); ++j) {
    const std::string& name = all[j].task->name;
    if (!name.starts_with("rotate") || name.starts_with("rotate d_keys home")) continue;
    const auto next = std::find_if(all.begin() + static_cast<std::ptrdiff_t>(j), all.end(),
                                   [](const test::Instance& i) { return i.task->lane == Lane::compute; });
    EXPECT_LE(next->target[all[j].lane], all[j].number) << next->task->name << " waits for " << name;
    EXPECT_GT(next->task->flops, 0) << next->task->name;
    ++beside;
  }
  EXPECT_EQ(beside, 2 * (2 + 4)) << "of both layers";
}

// Roles differ in whose block it is, and in nothing that the mesh must agree on.
TEST(ContextMesh, OfARingPassesTheCheckBeforeTheFirstStep) {
  for (const int pp : {1, 2}) {
    const BuildRequest request = test::request_of(
        {.name = "",
         .overrides = {"mesh.cp=3", "context.method=ring", "batch.global=4", fmt::format("mesh.pp={}", pp), "run.lanes=threads"},
         .ranks = 3 * pp,
         .cp = 3,
         .pp = pp});
    const std::vector<RunPlan> roles = plan_roles(request);
    EXPECT_EQ(std::ssize(roles), 3 * pp);
    EXPECT_EQ(cross_check(roles), "");
  }
}

TEST(ContextMesh, SaysHowKeysReachOtherRanks) {
  const Deck deck = test::tiny_deck();  // of two key heads
  EXPECT_EQ(describe_context(deck, {{1, 1, 1, 2, 1, 1}}), "");
  EXPECT_EQ(describe_context(deck, {{1, 1, 3, 4, 1, 1}}), " (2 have the same key and value head)");
  EXPECT_EQ(describe_context(deck, {{1, 1, 1, 2, 1, 2}}), " (2 have the same key and value head)");
  const Deck ring = test::tiny_deck({"mesh.cp=3", "context.method=ring"}, 3);
  EXPECT_EQ(describe_context(ring, {{1, 1, 1, 3, 1, 1}}), " (keys and values go round in a ring)");
}

// A rank alone has neither exchanges nor values for them.
TEST(ContextOverlap, AloneNothingIsExchanged) {
  const Schedule schedule = test::schedule_of({.name = "", .overrides = {"batch.global=2"}, .ranks = 2});
  for (const Section& section : schedule.sections)
    for (const Task& task : section.tasks) EXPECT_NE(task.lane, Lane::context) << task.name;
  for (const Buffer& buffer : schedule.buffers) EXPECT_EQ(buffer.name.find("_blocks"), std::string::npos) << buffer.name;
}

}  // namespace
}  // namespace tessera::context_parallel_test
