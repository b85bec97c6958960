// activation.recompute = "auto": the cheapest set that fits, by exhaustion.
#include "schedule/plan/recompute_choice.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "schedule/plan/step_cost.hpp"
#include "schedules.hpp"
#include "validation/unit/sample.hpp"

namespace tessera::recompute_choice_test {
namespace {

using Place = RecomputeChoices::Place;

struct Model {
  const char* name;
  std::vector<std::string> overrides;
  int ranks = 1;
};
std::vector<Model> models() {
  return {
      {"wide", {"model.layers=4", "model.ff_width=160", "activation.recompute=auto"}},
      {"long", {"model.layers=4", "batch.sequence_length=256", "batch.micro=1", "model.qk_norm=true", "activation.recompute=auto"}},
      {"stage 3",
       {"model.layers=3", "zero.stage=3", "zero.param_persistence_threshold=0", "batch.sequence_length=64", "activation.recompute=auto"},
       2},
      {"stage 3, more layers",
       {"model.layers=9", "zero.stage=3", "zero.param_persistence_threshold=0", "batch.sequence_length=64", "activation.recompute=auto"},
       2},
      {"gpu", {"model.layers=4", "run.device=cuda", "precision.compute=bf16", "batch.sequence_length=512", "activation.recompute=auto"}},
      {"kept", {"model.layers=4", "activation.recompute=auto", "activation.keep=[\"attention\"]", "batch.sequence_length=128"}},
      {"adapters", {"model.layers=4", "activation.recompute=auto", "lora.rank=4", "batch.sequence_length=128"}},
      {"lower half frozen",
       {"model.layers=4", "activation.recompute=auto", "batch.sequence_length=128",
        R"(model.freeze=["embedding.*", "layers.0.*", "layers.1.*"])"}}};
}

struct Planned {
  Place place;
  std::int64_t bytes = 0;
  double flops = 0;
};

/// Every level and every mixture of two, planned.
std::vector<Planned> all_places(BuildRequest request, const RecomputeChoices& choices, MemoryKind kind) {
  std::vector<Planned> all;
  const int count = static_cast<int>(choices.levels.size());
  for (int early = 0; early < count; ++early)
    for (int late = 0; late < count; ++late)
      for (std::int64_t n = early == late ? choices.layers : 1; n < choices.layers + (early == late); ++n) {
        request.recompute = {choices.at({early, late, n})};
        const Schedule schedule = build_schedule(request);
        all.push_back({{early, late, n}, bytes_of(place(schedule).bytes, kind), step_cost(schedule).remade_flops});
      }
  return all;
}

double flops_of(BuildRequest request, const RecomputeChoice& choice) {
  request.recompute = {choice};
  return step_cost(build_schedule(request)).remade_flops;
}

TEST(RecomputeAuto, NoCheaperSetFits) {
  test::Sample sample;
  const std::vector<Model> all_models = models();
  for (const std::size_t m : sample.of(all_models.size(), 4)) {
    const Model& model = all_models[m];
    const BuildRequest request = test::request_of({.name = model.name, .overrides = model.overrides, .ranks = model.ranks});
    const RecomputeChoices choices(request);
    const bool on_gpu = request.deck.run.device == RunDevice::cuda;
    const MemoryKind kind = on_gpu ? MemoryKind::device : MemoryKind::host;
    const std::vector<Planned> all = all_places(request, choices, kind);
    const auto [least, most] = std::ranges::minmax(all, {}, &Planned::bytes);
    ASSERT_LT(least.bytes, most.bytes) << model.name;
    int with_recompute = 0;
    for (int step = 0; step <= 10; ++step) {
      const std::int64_t limit = least.bytes + (most.bytes - least.bytes) * step / 10;
      MemoryLimits limits;
      limits[static_cast<std::size_t>(kind)] = MemoryLimit{limit, "a limit"};
      const RecomputeChoice chosen = choices.at(choose_recompute(request, choices, limits));
      BuildRequest settled = request;
      settled.recompute = {chosen};
      ASSERT_LE(bytes_of(place(build_schedule(settled)).bytes, kind), limit) << model.name << " " << describe(chosen, choices.stage);
      const double flops = flops_of(request, chosen);
      for (const Planned& other : all)
        if (other.bytes <= limit) {
          ASSERT_GE(other.flops, flops * (1 - 1e-12)) << model.name << ": " << describe(chosen, choices.stage) << " where "
                                                      << describe(choices.at(other.place), choices.stage) << " fits";
        }
      with_recompute += flops > 0;
    }
    EXPECT_GE(with_recompute, 4) << model.name << ": or the limits were of no interest";
  }
}

/// Every set of the values that recompute = "none" keeps, but those that come to keeping the same as another.
std::vector<RecomputeLevel> all_sets(const Deck& deck) {
  const std::vector<Segment> segments = model_segments(model_shape(deck));
  std::vector<std::string> names;
  for (const std::string& name : value_names(segments))
    if (kept_values(segments, {"attention", "mlp"}).contains(name)) names.push_back(name);
  std::map<std::vector<Kept>, RecomputeLevel> sets;  // by what they keep
  for (std::size_t bits = 0; bits < std::size_t{1} << names.size(); ++bits) {
    RecomputeLevel level;
    for (std::size_t i = 0; i < names.size(); ++i)
      if (bits >> i & 1) level.dropped.insert(names[i]);
    sets.try_emplace(plan_activations(segments, {.early = {}, .late = level, .layers = 0, .keep = {}}).kept, level);
  }
  std::vector<RecomputeLevel> levels;
  for (const auto& [kept, level] : sets) levels.push_back(level);
  return levels;
}

// Not only of the levels that auto looks at: of all sets of values, in each of two layers another.
TEST(RecomputeAuto, NoSetOfValuesIsCheaper) {
  for (const std::vector<std::string>& overrides : {std::vector<std::string>{"batch.sequence_length=48"},
                                                    {"batch.sequence_length=256", "batch.micro=1"},
                                                    {"model.ff_width=200"},
                                                    {"model.qk_norm=true", "batch.sequence_length=96", "precision.compute=bf16"}}) {
    std::vector<std::string> all{"model.layers=2", "activation.recompute=auto"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const BuildRequest request = test::request_of({.name = "", .overrides = all});
    const RecomputeChoices choices(request);
    std::vector<std::pair<std::int64_t, double>> sets;  // bytes, FLOPs
    const std::vector<RecomputeLevel> levels = all_sets(request.deck);
    ASSERT_GE(levels.size(), 8u);
    for (const RecomputeLevel& early : levels)
      for (const RecomputeLevel& late : levels) {
        BuildRequest with = request;
        with.recompute = {RecomputeChoice{.early = early, .late = late, .layers = 1, .keep = {}}};
        const Schedule schedule = build_schedule(with);
        sets.emplace_back(bytes_of(place(schedule).bytes, MemoryKind::host), step_cost(schedule).remade_flops);
      }
    const auto [least, most] = std::ranges::minmax(sets);
    for (int step = 0; step <= 10; ++step) {
      const std::int64_t limit = least.first + (most.first - least.first) * step / 10;
      const double flops = flops_of(request, choices.at(choose_recompute(request, choices, {std::nullopt, MemoryLimit{limit, "a limit"}})));
      for (const auto& [bytes, cost] : sets)
        if (bytes <= limit) {
          ASSERT_GE(cost, flops * (1 - 1e-12)) << overrides[0] << ", step " << step << ", " << bytes << " of " << limit;
        }
    }
  }
}

TEST(RecomputeAuto, WhereNothingFitsAllIsDropped) {
  const BuildRequest request = test::request_of({.name = "", .overrides = {"model.layers=3", "activation.recompute=auto"}});
  const RecomputeChoices choices(request);
  const Place place = choose_recompute(request, choices, {std::nullopt, MemoryLimit{1, "nothing"}});
  EXPECT_EQ(place.early, static_cast<int>(choices.levels.size()) - 1);
  EXPECT_EQ(place.n, 3);
}

TEST(RecomputeAuto, KeepsAllWhereAllFits) {
  BuildRequest request = test::request_of({.name = "", .overrides = {"activation.recompute=auto"}});
  settle_recompute(request, {std::nullopt, MemoryLimit{std::int64_t{1} << 40, "plenty"}});
  ASSERT_TRUE(request.choice());
  EXPECT_EQ(step_cost(build_schedule(request)).remade_flops, 0);
  BuildRequest none = test::request_of({.name = "", .overrides = {"activation.recompute=none"}});
  EXPECT_EQ(build_schedule(request).hash(), build_schedule(none).hash()) << "not one call more than none makes";
  settle_recompute(none, {std::nullopt, MemoryLimit{1, "nothing"}});
  EXPECT_FALSE(none.choice()) << "auto alone is settled";
}

TEST(RecomputeAuto, TheLimitAloneDecidesAndNotWhoAsks) {
  const auto chosen = [](int rank) {
    BuildRequest request = test::request_of(
        {.name = "", .overrides = {"model.layers=6", "activation.recompute=auto", "zero.stage=2"}, .rank = rank, .ranks = 3});
    BuildRequest none = request;
    none.recompute = {RecomputeChoice{}};
    const std::int64_t all = bytes_of(place(build_schedule(none)).bytes, MemoryKind::host);
    settle_recompute(request, {std::nullopt, MemoryLimit{all * 9 / 10, "nine tenths"}});
    return *request.choice();
  };
  EXPECT_EQ(chosen(0), chosen(1));
  EXPECT_EQ(chosen(0), chosen(2));
}

/// Of a stage the plan of its first rank, whatever is settled.
std::int64_t bytes_of_stage(const BuildRequest& request, int stage) {
  const BuildRequest of_stage = request_like(request, request.mesh.ranks() / request.stage.count * stage);
  return bytes_of(place(build_schedule(of_stage)).bytes, MemoryKind::host);
}

// Earlier stages keep more micro-batches: one limit asks more of them.
TEST(RecomputeAuto, EachStageMakesAgainWhatItMust) {
  for (const char* order : {"1f1b", "interleaved", "zero_bubble"}) {
    const BuildRequest request =
        test::request_of({.name = order,
                          .overrides = {"model.layers=8", "mesh.pp=2", "batch.global=32", "batch.sequence_length=128",
                                        "activation.recompute=auto", std::string("pipeline.schedule=") + order},
                          .ranks = 2,
                          .pp = 2});
    ASSERT_EQ(request.stage.count, 2) << order;
    BuildRequest most = request, least = request;
    most.recompute.assign(2, RecomputeChoice{});
    settle_recompute(least, {std::nullopt, MemoryLimit{1, "nothing"}});
    ASSERT_EQ(least.recompute.size(), 2u) << order;
    const std::int64_t fullest = std::max(bytes_of_stage(most, 0), bytes_of_stage(most, 1));
    const std::int64_t needed = std::max(bytes_of_stage(least, 0), bytes_of_stage(least, 1));
    ASSERT_LT(needed, fullest) << order;
    int unlike = 0;
    for (int step = 0; step <= 8; ++step) {
      const std::int64_t limit = needed + (fullest - needed) * step / 8;
      BuildRequest settled = request;
      settle_recompute(settled, {std::nullopt, MemoryLimit{limit, "a limit"}});
      ASSERT_EQ(settled.recompute.size(), 2u) << order;
      double flops = 0, evenly = 0;
      for (int stage = 0; stage < 2; ++stage) {
        EXPECT_LE(bytes_of_stage(settled, stage), limit) << order << ", stage " << stage << ", step " << step;
        const BuildRequest own = request_like(settled, stage);
        flops += step_cost(build_schedule(own)).remade_flops;
        // What the stage asks for alone is what it gets.
        BuildRequest alone = request_like(request, stage);
        settle_own_recompute(alone, {std::nullopt, MemoryLimit{limit, "a limit"}});
        EXPECT_EQ(*alone.choice(), *own.choice()) << order << ", stage " << stage;
        evenly += step_cost(build_schedule(request_like(least, stage))).remade_flops;
      }
      EXPECT_LE(flops, evenly) << order << ", step " << step;
      unlike += describe(settled.recompute[0], request.stage) != describe(settled.recompute[1], request_like(request, 1).stage);
    }
    EXPECT_GE(unlike, 1) << order << ": stages never differed";
    EXPECT_EQ(describe(most.recompute[0], request.stage), describe(RecomputeLevel{})) << order;
  }
}

}  // namespace
}  // namespace tessera::recompute_choice_test
