// Waits between lanes: whatever speeds the lanes have, no two tasks that touch the same bytes change places, and none waits for ever.
#include "schedule/plan/order.hpp"

#include <gtest/gtest.h>

#include <set>

#include "instances.hpp"
#include "schedules.hpp"

namespace tessera::order_test {
namespace {

using test::Instance;
using test::unroll;

constexpr std::array kinds = {ProgramKind::train, ProgramKind::evaluate, ProgramKind::publish, ProgramKind::prompt,
                              ProgramKind::token, ProgramKind::first,    ProgramKind::update,  ProgramKind::saving};

/// Pairs (earlier, later) of different lanes that must keep their order.
std::vector<std::pair<std::size_t, std::size_t>> conflicts(const std::vector<Instance>& all) {
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (std::size_t j = 0; j < all.size(); ++j)
    for (std::size_t i = 0; i < j; ++i)
      if (all[i].lane != all[j].lane && conflict(all[i], all[j])) pairs.push_back({i, j});
  return pairs;
}

/// What is certain to be finished, by lane, when a task starts: its own waits and, through them, the waits of what it waits for.
std::vector<std::array<std::int64_t, lane_count>> certainly_done(const std::vector<Instance>& all) {
  std::vector<std::array<std::int64_t, lane_count>> done(all.size());
  std::array<std::vector<std::size_t>, lane_count> lanes;  // instances by lane and number
  for (std::size_t j = 0; j < all.size(); ++j) {
    auto& mine = done[j];
    auto join = [&](std::size_t i) {
      for (std::size_t l = 0; l < lane_count; ++l) mine[l] = std::max(mine[l], done[i][l]);
      mine[all[i].lane] = std::max(mine[all[i].lane], all[i].number + 1);
    };
    if (!lanes[all[j].lane].empty()) join(lanes[all[j].lane].back());
    for (std::size_t l = 0; l < lane_count; ++l)
      if (l != all[j].lane && all[j].target[l] > 0) {
        // A wait for a task that comes later in the list could be one that waits for this one.
        if (all[j].target[l] > static_cast<std::int64_t>(lanes[l].size())) throw std::logic_error("a wait reaches forward in the list");
        join(lanes[l][static_cast<std::size_t>(all[j].target[l] - 1)]);
      }
    lanes[all[j].lane].push_back(j);
  }
  return done;
}

/// "" or the first pair whose order is not certain: true of all speeds at once.
std::string unordered_pair(const std::vector<Instance>& all) {
  const auto done = certainly_done(all);
  for (auto [i, j] : conflicts(all))
    if (done[j][all[i].lane] <= all[i].number)
      return fmt::format("{} (number {} of its lane) and {} (number {})", all[i].task->name, all[i].number, all[j].task->name,
                         all[j].number);
  return "";
}

/// Lanes that start and finish tasks at random; `greed[l]` is how eager a lane is. Returns begin and end time of each task, or nothing
/// where all lanes wait.
std::vector<std::pair<std::int64_t, std::int64_t>> simulate(const std::vector<Instance>& all, test::Random& random) {
  std::array<std::vector<std::size_t>, lane_count> lanes;
  for (std::size_t i = 0; i < all.size(); ++i) lanes[all[i].lane].push_back(i);
  std::array<std::size_t, lane_count> done{};
  std::array<bool, lane_count> running{};
  std::array<std::int64_t, lane_count> greed{};
  for (auto& g : greed) g = random(0, 1) ? 1 : 50;
  std::vector<std::pair<std::int64_t, std::int64_t>> times(all.size());
  std::int64_t now = 0;
  while (true) {
    std::vector<std::size_t> may;  // lanes that can do something, each as often as it is eager
    for (std::size_t l = 0; l < lane_count; ++l) {
      if (done[l] == lanes[l].size()) continue;
      const Instance& next = all[lanes[l][done[l]]];
      bool ready = true;
      for (std::size_t o = 0; o < lane_count; ++o) ready &= o == l || static_cast<std::int64_t>(done[o]) >= next.target[o];
      if (running[l] || ready) may.insert(may.end(), static_cast<std::size_t>(greed[l]), l);
    }
    if (may.empty()) break;
    const std::size_t l = may[static_cast<std::size_t>(random(0, static_cast<std::int64_t>(may.size()) - 1))];
    auto& time = times[lanes[l][done[l]]];
    running[l] = !running[l];
    if (running[l]) {
      time.first = ++now;
    } else {
      time.second = ++now;
      ++done[l];
    }
  }
  for (std::size_t l = 0; l < lane_count; ++l)
    if (done[l] != lanes[l].size()) return {};
  return times;
}

class Ordered : public testing::TestWithParam<test::Setting> {
 protected:
  Schedule schedule_ = test::schedule_of(GetParam());
  MemoryPlan plan_ = place(schedule_);
  std::vector<Instance> instances(ProgramKind kind) const {
    return unroll(schedule_, plan_, order(schedule_, plan_, schedule_.program(kind)));
  }
};

TEST_P(Ordered, ConflictsKeepTheOrderOfTheListAtAllSpeeds) {
  for (ProgramKind kind : kinds) EXPECT_EQ(unordered_pair(instances(kind)), "");
}

TEST_P(Ordered, RandomSpeedsNeitherReorderNorBlock) {
  test::Random random(7);
  for (ProgramKind kind : kinds) {
    const auto all = instances(kind);
    const auto pairs = conflicts(all);
    for (int trial = 0; trial < 3 && !all.empty(); ++trial) {
      const auto times = simulate(all, random);
      ASSERT_FALSE(times.empty()) << "all lanes wait";
      for (auto [i, j] : pairs) ASSERT_LT(times[i].second, times[j].first) << all[i].task->name << " and " << all[j].task->name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Grid, Ordered, testing::ValuesIn(test::settings()), [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Tensor, Ordered, testing::ValuesIn(test::tensor_settings()), [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Context, Ordered, testing::ValuesIn(test::context_settings()), [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Pipeline, Ordered, testing::ValuesIn(test::pipeline_settings()), [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Orders, Ordered, testing::ValuesIn(test::ordered_settings()), [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Experts, Ordered, testing::ValuesIn(test::expert_settings()), [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(ExpertsBeside, Ordered, testing::ValuesIn(test::experts_beside_settings()),
                         [](const auto& info) { return info.param.name; });

test::Setting stage3() {
  return {.name = "stage3",
          .overrides = {"zero.stage=3", "zero.param_persistence_threshold=0", "zero.prefetch_bucket_size=20000",
                        "zero.max_reuse_distance=0", "batch.global=40", "model.layers=5"},
          .ranks = 4};
}

TEST(Order, TheTestFindsAMissingWait) {
  const Schedule schedule = test::schedule_of(stage3());
  const MemoryPlan plan = place(schedule);
  const auto all = unroll(schedule, plan, order(schedule, plan, schedule.program(ProgramKind::train)));
  ASSERT_EQ(unordered_pair(all), "");
  // Every wait that order() gives is there for a reason: without it some pair is free.
  int waits = 0, needed = 0;
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t l = 0; l < lane_count; ++l) {
      if (all[i].target[l] <= 0) continue;
      auto fewer = all;
      fewer[i].target[l] = 0;
      ++waits;
      needed += !unordered_pair(fewer).empty();
    }
  EXPECT_GT(waits, 20);
  EXPECT_GT(needed, waits / 2) << needed << " of " << waits;
}

TEST(Order, GathersRunAheadOfCompute) {
  const Schedule schedule = test::schedule_of(stage3());
  const MemoryPlan plan = place(schedule);
  const auto all = unroll(schedule, plan, order(schedule, plan, schedule.program(ProgramKind::train)));
  const auto done = certainly_done(all);
  const auto compute = static_cast<std::size_t>(Lane::compute), gather = static_cast<std::size_t>(Lane::gather);
  int ahead = 0;
  std::set<std::size_t> read;
  for (auto [i, j] : conflicts(all)) {
    if (all[i].lane != gather || all[j].lane != compute || !read.insert(i).second) continue;
    ahead += all[j].number - done[i][compute] >= 2;  // a compute task and more may run between a gather's start and its first reader's
  }
  EXPECT_GT(ahead, 0) << "the waits leave nothing to overlap";
}

/// How often, over all micro-batches, a layer's backward pass and the reduction of the layer above cannot run at one time.
int held_up(const std::string& overlap) {
  const Schedule schedule = test::schedule_of(
      {.name = "", .overrides = {"model.layers=4", "zero.stage=2", "zero.overlap_comm=" + overlap, "batch.global=8"}, .ranks = 2});
  const MemoryPlan plan = place(schedule);
  const auto all = unroll(schedule, plan, order(schedule, plan, schedule.program(ProgramKind::train)));
  const auto done = certainly_done(all);
  std::map<std::string, std::vector<std::size_t>> instances;
  for (std::size_t j = 0; j < all.size(); ++j) instances[all[j].task->name].push_back(j);
  int count = 0;
  for (int layer = 0; layer < 3; ++layer) {
    const auto &pass = instances[fmt::format("backward layers.{}.mlp", layer)],
               &reduction = instances[fmt::format("reduce layers.{}", layer + 1)];
    EXPECT_EQ(pass.size(), 2u);
    EXPECT_EQ(reduction.size(), 2u);
    for (std::size_t micro = 0; micro < std::min(pass.size(), reduction.size()); ++micro) {
      const Instance &p = all[pass[micro]], &r = all[reduction[micro]];
      count += done[pass[micro]][r.lane] > r.number || done[reduction[micro]][p.lane] > p.number;
    }
  }
  return count;
}

TEST(Order, ReductionsRunBesideTheBackwardPass) {
  EXPECT_GT(held_up("false"), 0);
  EXPECT_EQ(held_up("true"), 0);
}

TEST(Order, UpdatesOnTheHostRunBesideTheForwardPass) {
  const Schedule schedule = test::schedule_of(
      {.name = "", .overrides = {"model.layers=4", "zero.stage=2", "zero.offload_optimizer.device=host", "batch.global=8"}, .ranks = 2});
  const MemoryPlan plan = place(schedule);
  const auto all = unroll(schedule, plan, order(schedule, plan, schedule.program(ProgramKind::train)));
  const auto done = certainly_done(all);
  std::map<std::string, std::size_t> at;  // the first of a name
  for (std::size_t j = 0; j < all.size(); ++j) at.try_emplace(all[j].task->name, j);
  for (int layer = 0; layer < 4; ++layer) {
    const std::size_t forward = at.at(fmt::format("forward layers.{}.attention", layer));
    for (int updated = 0; updated < 4; ++updated) {
      const Instance& update = all[at.at(fmt::format("optimizer layers.{}", updated))];
      EXPECT_EQ(done[forward][update.lane] > update.number, updated <= layer) << "layer " << layer << " and the update of " << updated;
      EXPECT_LE(done[at.at(update.task->name)][all[forward].lane], all[at.at("forward embedding")].number)
          << "it waits for no forward pass";
    }
  }
}

// What ranks save of rows and columns does not divide by three.
TEST(Order, CopiesForASaveAreTheSameTasksOnAllRanks) {
  for (const char* type : {"adamw", "adafactor"}) {
    std::vector<std::string> first;
    for (int rank = 0; rank < 3; ++rank) {
      const Schedule schedule = test::schedule_of(
          {.name = "", .overrides = {fmt::format("optimizer.type={}", type), "checkpoint.async=true"}, .rank = rank, .ranks = 3});
      if (rank == 0) first = schedule.lines();
      EXPECT_EQ(schedule.lines(), first) << type << ", rank " << rank;
      for (const Held& copy : schedule.copies) EXPECT_EQ(copy.use.bytes, copy.bytes(copy.elements.size())) << copy.group;
    }
  }
}

TEST(Order, CopiesForASaveHoldUpUpdatesAlone) {
  for (const int ranks : {1, 2}) {
    const Schedule schedule =
        test::schedule_of({.name = "", .overrides = {"model.layers=4", "zero.stage=2", "checkpoint.async=true"}, .ranks = ranks});
    const MemoryPlan plan = place(schedule);
    const auto all = unroll(schedule, plan, order(schedule, plan, schedule.program(ProgramKind::saving)));
    const auto done = certainly_done(all);
    std::map<std::string, std::int64_t> copies;  // the last of a unit: its number on the lane
    for (const Instance& one : all) {
      if (one.lane == static_cast<std::size_t>(Lane::snapshot)) copies[one.task->name.substr(one.task->name.rfind(' ') + 1)] = one.number;
    }
    ASSERT_EQ(3 * copies.size(), schedule.state.size());
    int updates = 0;
    for (std::size_t j = 0; j < all.size(); ++j) {
      const std::string& name = all[j].task->name;
      const std::int64_t copied = done[j][static_cast<std::size_t>(Lane::snapshot)];
      if (std::holds_alternative<OptimizerStep>(all[j].task->op)) {
        ++updates;
        EXPECT_GT(copied, copies.at(name.substr(name.rfind(' ') + 1))) << name;
      }
      if (all[j].lane == static_cast<std::size_t>(Lane::compute) && updates == 0) {
        EXPECT_EQ(copied, 0) << name << " waits for a copy";
      }
    }
    EXPECT_EQ(updates, static_cast<int>(copies.size()));
  }
}

/// Two lanes hand one buffer back and forth over repetitions.
Schedule ping_pong() {
  Schedule s;
  s.buffers = {{"a", Category::inputs, Tier::host, 64, Life::run}, {"numbers", Category::inputs, Tier::host, 64, Life::run, 8}};
  s.sections = {{"begin", {{.name = "make", .op = Zero{}, .lane = Lane::gather, .uses = {{0, 0, 64, Access::write}}}}},
                {"body",
                 {{.name = "read", .op = Zero{}, .lane = Lane::compute, .uses = {{0, 0, 64, Access::read}, {1, 0, 8, Access::read, true}}},
                  {.name = "write", .op = Zero{}, .lane = Lane::reduce, .uses = {{0, 0, 64, Access::write}}}}}};
  s.program(ProgramKind::train).phases = {{0, 1}, {1, 5, 0}, {0, 1}};
  return s;
}

TEST(Order, RepetitionsWaitForTheOnesBefore) {
  const Schedule schedule = ping_pong();
  const MemoryPlan plan = place(schedule);
  const OrderedProgram program = order(schedule, plan, schedule.program(ProgramKind::train));
  const auto compute = static_cast<std::size_t>(Lane::compute), gather = static_cast<std::size_t>(Lane::gather),
             reduce = static_cast<std::size_t>(Lane::reduce);
  const OrderedPhase& body = program[1];
  EXPECT_EQ(body.waits[0][0][gather], 0);  // all that the gather lane had before
  EXPECT_FALSE(body.waits[0][0][reduce]);
  EXPECT_EQ(body.waits[0][1][compute], 1);  // this repetition's read
  EXPECT_EQ(body.waits[1][0][reduce], 0);   // the write of the repetition before
  EXPECT_FALSE(body.waits[1][0][gather]);
  EXPECT_EQ(body.waits[1][1][compute], 1);
  EXPECT_EQ(unordered_pair(unroll(schedule, plan, program)), "");
}

TEST(Order, SlotsThatAreOnlyReadDoNotLengthenTheTable) {
  const Schedule schedule = ping_pong();
  EXPECT_EQ(order(schedule, place(schedule), schedule.program(ProgramKind::train))[1].waits.size(), 2u);
}

TEST(Order, PhasesThatAreAlikeShareTheirTable) {
  Schedule schedule = ping_pong();
  // As the micro-batches of a pipeline's stage: a phase each.
  auto& phases = schedule.program(ProgramKind::train).phases;
  phases = {{0, 1}};
  for (std::int64_t micro = 0; micro < 20; ++micro) phases.push_back({1, 1, micro});
  const MemoryPlan plan = place(schedule);
  const OrderedProgram program = order(schedule, plan, schedule.program(ProgramKind::train));
  std::set<const Waits*> tables;
  for (const OrderedPhase& phase : program) tables.insert(&phase.waits_of(0)[0]);
  EXPECT_LE(tables.size(), 4u);
  EXPECT_EQ(unordered_pair(unroll(schedule, plan, program)), "");
}

TEST(Order, ReadersDoNotWaitForReaders) {
  Schedule s = ping_pong();
  s.sections[1].tasks[1].uses[0].access = Access::read;
  const OrderedProgram program = order(s, place(s), s.program(ProgramKind::train));
  const auto compute = static_cast<std::size_t>(Lane::compute), reduce = static_cast<std::size_t>(Lane::reduce);
  EXPECT_FALSE(program[1].waits[0][1][compute]);
  EXPECT_FALSE(program[1].waits[1][0][reduce]);
}

/// Tasks on all lanes that read, write and add to slots of a few buffers, in phases of one and of many micro-batches.
Schedule slotted(test::Random& random) {
  Schedule s;
  const auto buffers = random(1, 4);
  for (std::int64_t b = 0; b < buffers; ++b) {
    const std::int64_t slots = random(1, 4);
    s.buffers.push_back({fmt::format("b{}", b), Category::activations, Tier::host, 8 * slots, Life::run, slots});
  }
  std::int64_t micro = 0;
  for (auto sections = random(1, 3); sections > 0; --sections) {
    Section section{.name = fmt::format("s{}", s.sections.size()), .tasks = {}};
    for (auto tasks = random(1, 6); tasks > 0; --tasks) {
      Task task{.name = fmt::format("{}.{}", section.name, section.tasks.size()), .op = Zero{}, .uses = {}};
      task.lane = static_cast<Lane>(random(0, lane_count - 1));
      for (auto uses = random(1, 2); uses > 0; --uses) {
        const auto b = static_cast<int>(random(0, buffers - 1));
        const bool in_slot = random(0, 4) > 0;
        const std::int64_t bytes = in_slot ? 8 : s.buffers[static_cast<std::size_t>(b)].bytes;
        task.uses.push_back({b, 0, bytes, static_cast<Access>(random(0, 2)), in_slot, in_slot ? random(-2, 3) : 0});
      }
      section.tasks.push_back(std::move(task));
    }
    s.sections.push_back(std::move(section));
    const std::int64_t repeat = random(1, 11);
    s.program(ProgramKind::train).phases.push_back({static_cast<int>(s.sections.size()) - 1, repeat, micro});
    micro += repeat;
  }
  return s;
}

TEST(Order, SlotsKeepTheirOrderHoweverManyMicroBatchesThereAre) {
  test::Random random(11);
  for (int trial = 0; trial < 400; ++trial) {
    const Schedule schedule = slotted(random);
    const MemoryPlan plan = place(schedule);
    const auto all = unroll(schedule, plan, order(schedule, plan, schedule.program(ProgramKind::train)));
    ASSERT_EQ(unordered_pair(all), "") << "trial " << trial;
    ASSERT_FALSE(simulate(all, random).empty()) << "trial " << trial << ": all lanes wait";
  }
}

TEST(Order, AMicroBatchWaitsForItsSlotAndNotForItsNeighbours) {
  // One lane fills slots, another empties them.
  Schedule s;
  s.buffers = {{"ring", Category::activations, Tier::host, 24, Life::run, 3}};
  s.sections = {{"body",
                 {{.name = "fill", .op = Zero{}, .lane = Lane::gather, .uses = {{0, 0, 8, Access::write, true}}},
                  {.name = "empty", .op = Zero{}, .lane = Lane::compute, .uses = {{0, 0, 8, Access::read, true}}}}}};
  s.program(ProgramKind::train).phases = {{0, 10, 0}};
  const OrderedProgram program = order(s, place(s), s.program(ProgramKind::train));
  const auto compute = static_cast<std::size_t>(Lane::compute);
  ASSERT_EQ(program[0].waits.size(), 4u);
  for (std::int64_t r = 0; r < 3; ++r) EXPECT_FALSE(program[0].waits_of(r)[0][compute]) << "slot " << r << " was never used";
  for (std::int64_t r = 3; r < 10; ++r)
    EXPECT_EQ(program[0].waits_of(r)[0][compute], -2) << "what emptied this slot three micro-batches ago";
}

}  // namespace
}  // namespace tessera::order_test
