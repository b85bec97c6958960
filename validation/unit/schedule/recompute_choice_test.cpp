// activation.recompute = "auto": the cheapest set that fits, by exhaustion.
#include "schedule/plan/recompute_choice.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "schedule/plan/step_cost.hpp"
#include "schedules.hpp"

namespace tessera {
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
      {"gpu", {"model.layers=4", "run.device=cuda", "precision.compute=bf16", "batch.sequence_length=512", "activation.recompute=auto"}},
      {"kept", {"model.layers=4", "activation.recompute=auto", "activation.keep=[\"attention\"]", "batch.sequence_length=128"}}};
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
        request.recompute = choices.at({early, late, n});
        const Schedule schedule = build_schedule(request);
        all.push_back({{early, late, n}, bytes_of(place(schedule).bytes, kind), step_cost(schedule).remade_flops});
      }
  return all;
}

double flops_of(BuildRequest request, const RecomputeChoice& choice) {
  request.recompute = choice;
  return step_cost(build_schedule(request)).remade_flops;
}

TEST(RecomputeAuto, NoCheaperSetFits) {
  for (const Model& model : models()) {
    const BuildRequest request = test::request_of({.name = model.name, .overrides = model.overrides, .ranks = model.ranks});
    const RecomputeChoices choices(request.deck);
    const bool on_gpu = request.deck.run.device == "cuda";
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
      settled.recompute = chosen;
      ASSERT_LE(bytes_of(place(build_schedule(settled)).bytes, kind), limit) << model.name << " " << describe(chosen, choices.layers);
      const double flops = flops_of(request, chosen);
      for (const Planned& other : all)
        if (other.bytes <= limit) {
          ASSERT_GE(other.flops, flops * (1 - 1e-12)) << model.name << ": " << describe(chosen, choices.layers) << " where "
                                                      << describe(choices.at(other.place), choices.layers) << " fits";
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
    const RecomputeChoices choices(request.deck);
    std::vector<std::pair<std::int64_t, double>> sets;  // bytes, FLOPs
    const std::vector<RecomputeLevel> levels = all_sets(request.deck);
    ASSERT_GE(levels.size(), 8u);
    for (const RecomputeLevel& early : levels)
      for (const RecomputeLevel& late : levels) {
        BuildRequest with = request;
        with.recompute = RecomputeChoice{.early = early, .late = late, .layers = 1, .keep = {}};
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
  const RecomputeChoices choices(request.deck);
  const Place place = choose_recompute(request, choices, {std::nullopt, MemoryLimit{1, "nothing"}});
  EXPECT_EQ(place.early, static_cast<int>(choices.levels.size()) - 1);
  EXPECT_EQ(place.n, 3);
}

TEST(RecomputeAuto, KeepsAllWhereAllFits) {
  BuildRequest request = test::request_of({.name = "", .overrides = {"activation.recompute=auto"}});
  settle_recompute(request, {std::nullopt, MemoryLimit{std::int64_t{1} << 40, "plenty"}});
  ASSERT_TRUE(request.recompute);
  EXPECT_EQ(step_cost(build_schedule(request)).remade_flops, 0);
  BuildRequest none = test::request_of({.name = "", .overrides = {"activation.recompute=none"}});
  EXPECT_EQ(build_schedule(request).hash(), build_schedule(none).hash()) << "not one call more than none makes";
  settle_recompute(none, {std::nullopt, MemoryLimit{1, "nothing"}});
  EXPECT_FALSE(none.recompute) << "auto alone is settled";
}

TEST(RecomputeAuto, TheLimitAloneDecidesAndNotWhoAsks) {
  const auto chosen = [](int rank) {
    BuildRequest request = test::request_of(
        {.name = "", .overrides = {"model.layers=6", "activation.recompute=auto", "zero.stage=2"}, .rank = rank, .ranks = 3});
    BuildRequest none = request;
    none.recompute = RecomputeChoice{};
    const std::int64_t all = bytes_of(place(build_schedule(none)).bytes, MemoryKind::host);
    settle_recompute(request, {std::nullopt, MemoryLimit{all * 9 / 10, "nine tenths"}});
    return *request.recompute;
  };
  EXPECT_EQ(chosen(0), chosen(1));
  EXPECT_EQ(chosen(0), chosen(2));
}

}  // namespace
}  // namespace tessera
