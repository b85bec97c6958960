// Schedules of tensor-parallel ranks: who agrees on what, who owns what, what meets when.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "instances.hpp"
#include "schedule/build/describe_mesh.hpp"
#include "schedule/plan/cross_check.hpp"
#include "schedules.hpp"
#include "validation/unit/sample.hpp"

namespace tessera::tensor_parallel_test {
namespace {

constexpr Axes tensor = axes({Axis::tp});

class Tensor : public testing::TestWithParam<test::Setting> {
 protected:
  BuildRequest request(int rank) const {
    test::Setting s = GetParam();
    s.rank = rank;
    return test::request_of(s);
  }
};

// A vocabulary of 61 tokens is 31 and 30: schedules of the two roles differ, and what they do together must not.
TEST_P(Tensor, RanksOfARoleAgreeOnAllAndTheOthersOnWhatTheyDoTogether) {
  std::map<int, Hash128> by_role;
  const std::vector<std::string> together = build_schedule(request(0)).collectives_along(Axis::tp);
  ASSERT_FALSE(together.empty());
  for (int rank = 0; rank < GetParam().ranks; ++rank) {
    const Schedule schedule = build_schedule(request(rank));
    EXPECT_EQ(schedule.collectives_along(Axis::tp), together) << rank;
    const auto [role, fresh] = by_role.try_emplace(rank % GetParam().tp, schedule.hash());
    if (!fresh) {
      EXPECT_EQ(schedule.hash(), role->second) << rank;
    }
  }
  EXPECT_NE(by_role.at(0), by_role.at(1));
}

// Whatever the sizes of their parts: of a vocabulary that tp does not divide they are padded unlike, and cut into unlike numbers of
// buckets.
TEST(Meshes, RanksThatMeetAgreeOnHowTheyDo) {
  struct Case {
    std::string name;
    std::vector<std::string> overrides;
    int ranks;
  };
  std::vector<Case> cases;
  for (const char* axis : {"mesh.replicate=2", "mesh.ep=2", "mesh.cp=2", "mesh.replicate=3"})
    for (const int tp : {2, 4})
      for (int stage = 0; stage <= 3; ++stage)
        for (const int vocab : {65, 257, 1025})
          for (const int bucket : {4096, 500000}) {
            const bool experts = std::string_view(axis).starts_with("mesh.ep");
            if (stage == 0 && std::string_view(axis).starts_with("mesh.replicate")) continue;  // refused
            const int other = axis[std::string_view(axis).size() - 1] - '0', ranks = tp * other * (experts ? 1 : 2);
            Case c{.name = fmt::format("{} tp {} stage {} vocab {} bucket {}", axis, tp, stage, vocab, bucket),
                   .overrides = {},
                   .ranks = ranks};
            c.overrides = {axis,
                           fmt::format("mesh.tp={}", tp),
                           fmt::format("zero.stage={}", stage),
                           fmt::format("model.vocab={}", vocab),
                           fmt::format("zero.reduce_bucket_size={}", bucket),
                           fmt::format("zero.allgather_bucket_size={}", bucket),
                           "model.width=64",
                           "model.heads=8",
                           "model.kv_heads=4",
                           "batch.global=24",
                           "batch.micro=4",
                           "zero.param_persistence_threshold=0",
                           experts ? "model.experts=4" : "model.layers=1"};
            cases.push_back(std::move(c));
          }
  test::Sample sample;
  for (const std::size_t n : sample.of(cases.size(), 16)) {
    const Case& c = cases[n];
    const Deck deck = test::tiny_deck(c.overrides, c.ranks);
    const Mesh mesh = make_mesh(deck, c.ranks);
    std::vector<Schedule> schedules;
    for (int rank = 0; rank < c.ranks; ++rank) schedules.push_back(build_schedule(request_for(deck, mesh, rank, Purpose::training)));
    for (const Axis axis : all_axes)
      for (int rank = 0; rank < c.ranks; ++rank) {
        const auto first = static_cast<std::size_t>(group_of(mesh, axes({axis}), rank).world.front());
        EXPECT_EQ(schedules[static_cast<std::size_t>(rank)].collectives_along(axis), schedules[first].collectives_along(axis))
            << c.name << ", along " << name_of(axis) << " rank " << rank << ", with " << sample.describe();
      }
  }
}

// The bias of a sum over tensor ranks is added by one of them. Where nothing else of its unit is read, updates beside the next step's pass
// must not come where each rank reads it first.
TEST(Meshes, TensorRanksAgreeWhereOneAloneReadsWhatTheyShare) {
  for (const int stage : {1, 2, 3})
    for (const char* device : {"none", "host"})
      for (const char* bias : {"model.attention_out_bias=true", "model.mlp_bias=true", "model.head_bias=true"}) {
        const Deck deck = test::tiny_deck({"mesh.tp=2", fmt::format("zero.stage={}", stage), bias, "model.freeze=[\"*norm*\"]",
                                           fmt::format("zero.offload_optimizer.device={}", device)},
                                          4);
        const Mesh mesh = make_mesh(deck, 4);
        const std::vector<std::string> together = build_schedule(request_for(deck, mesh, 0, Purpose::training)).collectives_along(Axis::tp);
        ASSERT_FALSE(together.empty());
        EXPECT_EQ(build_schedule(request_for(deck, mesh, 1, Purpose::training)).collectives_along(Axis::tp), together)
            << "stage " << stage << ", optimizer on " << device << ", " << bias;
      }
}

TEST_P(Tensor, TheOptimizerTouchesEveryElementOfEveryTensorOnce) {
  const BuildRequest first = request(0);
  const std::vector<std::vector<int>> count = test::updates_of(GetParam());
  for (std::size_t p = 0; p < count.size(); ++p) {
    const bool cut = first.layout.table[p].tp_dim >= 0;
    const int copies = first.deck.zero.stage > 0 ? 1 : GetParam().ranks / (cut ? GetParam().tp : 1);
    for (const int n : count[p]) ASSERT_EQ(n, copies) << first.layout.table[p].name;
  }
}

// What no axis cuts has gradients on every rank, which meet over all of them; the rest meets over the data-parallel ranks alone.
TEST_P(Tensor, GradientsMeetOverTheRanksThatHaveThem) {
  const BuildRequest mine = request(0);
  const Schedule schedule = build_schedule(mine);
  for (const Unit& unit : mine.layout.units) {
    const bool replicated = unit.name == "replicated";
    for (const Slot& slot : unit.slots) EXPECT_EQ(mine.layout.table[static_cast<std::size_t>(slot.parameter)].tp_dim < 0, replicated);
    EXPECT_EQ(unit.shards, replicated ? GetParam().ranks : GetParam().ranks / GetParam().tp) << unit.name;
  }
  std::set<std::string> reduced;
  for (const auto& phase : schedule.program(ProgramKind::train).phases)
    for (const Task& task : schedule.sections[static_cast<std::size_t>(phase.section)].tasks) {
      const auto* c = std::get_if<Collective>(&task.op);
      if (!c || task.lane != Lane::reduce || !(task.name.starts_with("reduce ") || task.name.starts_with("all-reduce "))) continue;
      if (task.name == "all-reduce counts of the batch" || task.name == "all-reduce loss, norm and flags" ||
          task.name.ends_with("replicated"))
        EXPECT_EQ(c->axes, data_axes | tensor) << task.name;
      else
        EXPECT_EQ(c->axes, data_axes) << task.name;
      reduced.insert(task.name);
    }
  EXPECT_GE(reduced.size(), GetParam().ranks == GetParam().tp ? 2u : 4u);
}

// A layer's products gather the rows of the stream before and sum over ranks after, in either direction.
TEST_P(Tensor, EachSegmentGathersAndReducesAsOften) {
  const Schedule schedule = build_schedule(request(0));
  std::map<std::string, int> gathers, reductions, of_keys;  // by pass
  for (const SegmentPass& pass : schedule.passes)
    if (const Exchange* x = exchange_of(schedule.segment_of(pass), pass)) {
      if (pass.name.starts_with("gather key_part (") || pass.name.starts_with("reduce d_key_parts ("))
        ++of_keys[pass.whole];
      else
        ++(x->kind == CollectiveKind::all_gather ? gathers : reductions)[pass.whole];
    }
  const int times = GetParam().evaluation > 0 ? 2 : 1;  // forward passes of an evaluation too
  for (const char* segment : {"layers.0.attention", "layers.1.mlp"}) {
    EXPECT_EQ(gathers[std::string("forward ") + segment], times) << segment;
    EXPECT_EQ(reductions[std::string("forward ") + segment], times) << segment;
    EXPECT_EQ(reductions[std::string("backward ") + segment], 1) << segment;
    EXPECT_EQ(gathers[std::string("backward ") + segment], 2) << segment << ": the gradient's rows, and once more those of the stream";
  }
  EXPECT_EQ(reductions["forward embedding"], times);
  // Parts of a key head that several have are gathered, and their gradients reduced.
  const bool shared = schedule.shape.G < GetParam().tp;
  EXPECT_EQ(of_keys["forward layers.0.attention"], shared ? times : 0);
  EXPECT_EQ(of_keys["backward layers.0.attention"] > 0, shared);
  EXPECT_EQ(of_keys.count("forward layers.0.mlp"), 0u);
}

INSTANTIATE_TEST_SUITE_P(Grid, Tensor, testing::ValuesIn(test::tensor_settings()), [](const auto& info) { return info.param.name; });

TEST(TensorMesh, SaysWhoHasTheSameKeys) {
  const Deck deck = test::tiny_deck();  // of two key heads
  EXPECT_EQ(describe_tensor(deck, {{1, 1, 1, 1, 1, 1}}), "");
  EXPECT_EQ(describe_tensor(deck, {{1, 1, 3, 1, 1, 2}}), "");
  EXPECT_EQ(describe_tensor(deck, {{1, 1, 1, 1, 1, 4}}), " (2 make parts of the same key and value head)");
}

// Every role of ranks that share keys, beside rings and stages of a pipeline, meets the others in every collective.
TEST(TensorMesh, OfSharedKeysPassesTheCheckBeforeTheFirstStep) {
  for (const char* method : {"ulysses", "ring"})
    for (const int pp : {1, 2}) {
      const BuildRequest request =
          test::request_of({.name = "",
                            .overrides = {"mesh.tp=4", "mesh.cp=2", fmt::format("context.method={}", method), "batch.global=4",
                                          "model.heads=8", fmt::format("mesh.pp={}", pp), "run.lanes=threads"},
                            .ranks = 8 * pp,
                            .tp = 4,
                            .cp = 2,
                            .pp = pp});
      EXPECT_EQ(cross_check(plan_roles(request)), "") << method << " " << pp;
    }
}

// While sums of an input's gradient meet, the weight's gradient is made.
TEST(TensorOverlap, WeightGradientsRunBesideTheReduction) {
  const Schedule schedule = test::schedule_of({.name = "", .overrides = {"mesh.tp=2", "batch.global=2"}, .ranks = 2, .tp = 2});
  const MemoryPlan plan = place(schedule);
  const auto all = test::unroll(schedule, plan, order(schedule, plan, schedule.program(ProgramKind::train)));
  int beside = 0;
  for (std::size_t j = 0; j + 1 < all.size(); ++j) {
    if (!all[j].task->name.starts_with("reduce d_sums (backward layers.")) continue;
    const auto* next = std::get_if<RunPass>(&all[j + 1].task->op);
    ASSERT_TRUE(next) << all[j + 1].task->name;
    beside += all[j + 1].target[all[j].lane] <= all[j].number;
  }
  EXPECT_EQ(beside, 2 * 2) << "of each segment of both layers";
}

}  // namespace
}  // namespace tessera::tensor_parallel_test
