// Places of buffers, by brute force: what is alive together never shares a byte.
#include "schedule/plan/memory_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "schedules.hpp"
#include "validation/unit/sample.hpp"

namespace tessera::memory_plan_test {
namespace {

struct Place {
  Tier tier;
  std::int64_t begin, end;
};

Place place_of(const Schedule& schedule, const MemoryPlan& plan, int buffer) {
  const auto b = static_cast<std::size_t>(buffer);
  return {schedule.buffers[b].tier, plan.offset[b], plan.offset[b] + schedule.buffers[b].bytes};
}

bool overlap(const Place& a, const Place& b) { return a.tier == b.tier && a.begin < b.end && b.begin < a.end; }

/// Transient buffers that hold something during task `t`: used at or before it, and at or after it.
std::set<int> alive_at(const Schedule& schedule, const Section& section, std::size_t t) {
  std::set<int> before, after, both;
  for (std::size_t i = 0; i < section.tasks.size(); ++i)
    for (const Use& use : section.tasks[i].uses) {
      if (schedule.buffers[static_cast<std::size_t>(use.buffer)].life == Life::run) continue;
      if (i <= t) before.insert(use.buffer);
      if (i >= t) after.insert(use.buffer);
    }
  for (int b : before)
    if (after.contains(b)) both.insert(b);
  return both;
}

/// "" or the first pair that shares bytes while both are alive.
std::string clash(const Schedule& schedule, const MemoryPlan& plan) {
  std::vector<int> persistent;
  for (int b = 0; b < static_cast<int>(schedule.buffers.size()); ++b)
    if (schedule.buffers[static_cast<std::size_t>(b)].life == Life::run) persistent.push_back(b);
  auto compare = [&](int a, int b) -> std::string {
    if (a == b || !overlap(place_of(schedule, plan, a), place_of(schedule, plan, b))) return "";
    return schedule.buffers[static_cast<std::size_t>(a)].name + " and " + schedule.buffers[static_cast<std::size_t>(b)].name;
  };
  for (int a : persistent)
    for (int b = 0; b < static_cast<int>(schedule.buffers.size()); ++b)
      if (auto text = compare(a, b); !text.empty()) return text;
  for (const Section& section : schedule.sections)
    for (std::size_t t = 0; t < section.tasks.size(); ++t) {
      const auto alive = alive_at(schedule, section, t);
      for (int a : alive)
        for (int b : alive)
          if (auto text = compare(a, b); !text.empty()) return text + " during " + section.tasks[t].name;
    }
  return "";
}

/// When a buffer lives in a section, by tasks.
struct InSection {
  std::size_t section, first, last;
};

/// Of one that a program keeps: all sections from the first that uses it to the last, whole, but for what lies before the first use and
/// after the last in sections that run once.
std::vector<InSection> over_sections(const Schedule& schedule, const std::vector<InSection>& uses) {
  std::map<std::size_t, InSection> lives;
  for (int kind = 0; kind < program_count; ++kind) {
    const auto& phases = schedule.program(static_cast<ProgramKind>(kind)).phases;
    const auto use_in = [&](const Program::Phase& phase) {
      return std::ranges::find(uses, static_cast<std::size_t>(phase.section), &InSection::section);
    };
    std::vector<std::size_t> used;
    for (std::size_t p = 0; p < phases.size(); ++p)
      if (use_in(phases[p]) != uses.end()) used.push_back(p);
    if (used.empty()) continue;
    for (std::size_t p = used.front(); p <= used.back(); ++p) {
      const auto section = static_cast<std::size_t>(phases[p].section);
      InSection life{section, 0, schedule.sections[section].tasks.size() - 1};
      const bool once = phases[p].repeat == 1 && std::ranges::count(phases, phases[p].section, &Program::Phase::section) == 1;
      if (once && p == used.front()) life.first = use_in(phases[p])->first;
      if (once && p == used.back()) life.last = use_in(phases[p])->last;
      lives[section] = life;
    }
  }
  std::vector<InSection> all;
  for (const auto& [section, life] : lives) all.push_back(life);
  return all;
}

/// First fit as one would write it down: each buffer against all that are placed. What place() must return to the byte, because a job's
/// memory and its peers' addresses come from it.
std::vector<std::int64_t> first_fit(const Schedule& schedule) {
  std::vector<std::vector<InSection>> lives(schedule.buffers.size());
  for (std::size_t s = 0; s < schedule.sections.size(); ++s)
    for (std::size_t t = 0; t < schedule.sections[s].tasks.size(); ++t)
      for (const Use& use : schedule.sections[s].tasks[t].uses) {
        auto& life = lives[static_cast<std::size_t>(use.buffer)];
        if (life.empty() || life.back().section != s) life.push_back({s, t, t});
        life.back().last = t;
      }
  for (std::size_t b = 0; b < lives.size(); ++b)
    if (schedule.buffers[b].life == tessera::Life::program) lives[b] = over_sections(schedule, lives[b]);
  auto meet = [&](std::size_t a, std::size_t b) {
    for (const InSection& x : lives[a])
      for (const InSection& y : lives[b])
        if (x.section == y.section && x.first <= y.last && y.first <= x.last) return true;
    return false;
  };
  auto bytes = [&](std::size_t b) { return round_up(schedule.buffers[b].bytes, schedule.buffers[b].alignment); };
  std::vector<std::int64_t> offset(schedule.buffers.size(), 0);
  std::array<std::int64_t, tier_count> persistent{};
  std::vector<std::size_t> falling, placed;
  std::set<std::size_t> state;
  for (const Held& held : schedule.state) state.insert(static_cast<std::size_t>(held.use.buffer));
  for (const bool first : {true, false})
    for (std::size_t b = 0; b < schedule.buffers.size(); ++b)
      if (auto& end = persistent[static_cast<std::size_t>(schedule.buffers[b].tier)];
          schedule.buffers[b].life == tessera::Life::run && state.contains(b) == first)
        offset[b] = end, end += bytes(b);
  for (std::size_t b = 0; b < schedule.buffers.size(); ++b)
    if (schedule.buffers[b].life != tessera::Life::run && !lives[b].empty()) falling.push_back(b);
  std::stable_sort(falling.begin(), falling.end(),
                   [&](std::size_t a, std::size_t b) { return schedule.buffers[a].bytes > schedule.buffers[b].bytes; });
  for (std::size_t b : falling) {
    std::vector<std::pair<std::int64_t, std::int64_t>> taken;
    for (std::size_t other : placed)
      if (schedule.buffers[other].tier == schedule.buffers[b].tier && meet(b, other))
        taken.push_back({offset[other], offset[other] + bytes(other)});
    std::sort(taken.begin(), taken.end());
    offset[b] = persistent[static_cast<std::size_t>(schedule.buffers[b].tier)];
    for (auto [begin, end] : taken) {
      if (begin - offset[b] >= bytes(b)) break;
      offset[b] = std::max(offset[b], end);
    }
    placed.push_back(b);
  }
  return offset;
}

class Placed : public testing::TestWithParam<test::Setting> {
 protected:
  Schedule schedule_ = test::schedule_of(GetParam());
  MemoryPlan plan_ = place(schedule_);
};

TEST_P(Placed, WhatIsAliveTogetherSharesNoByte) { EXPECT_EQ(clash(schedule_, plan_), ""); }

TEST_P(Placed, IsFirstFit) { EXPECT_EQ(plan_.offset, first_fit(schedule_)); }

TEST_P(Placed, ArenasAreAsLongAsTheirLastBuffer) {
  std::array<std::int64_t, tier_count> end{}, persistent{};
  for (std::size_t b = 0; b < schedule_.buffers.size(); ++b) {
    const Buffer& buffer = schedule_.buffers[b];
    const auto tier = static_cast<std::size_t>(buffer.tier);
    EXPECT_EQ(plan_.offset[b] % buffer.alignment, 0) << buffer.name;
    const std::int64_t last = plan_.offset[b] + round_up(buffer.bytes, buffer.alignment);
    end[tier] = std::max(end[tier], last);
    if (buffer.life == Life::run) persistent[tier] = std::max(persistent[tier], last);
    if (buffer.life != Life::run) {
      EXPECT_GE(plan_.offset[b], plan_.persistent[tier]) << buffer.name;
    }
  }
  EXPECT_EQ(plan_.bytes, end);
  EXPECT_EQ(plan_.persistent, persistent);
  for (std::size_t t = 0; t < tier_count; ++t) EXPECT_EQ(plan_.transient[t], end[t] - persistent[t]);
}

// Of tensor-parallel ranks that have unlike parts of the vocabulary, products may ask for unlike workspaces, as the processor has it.
TEST_P(Placed, IsTheSameOnEveryRankOfARoleAndEveryTime) {
  if (!test::Sample::takes(GetParam().name, 3)) return;  // each is a schedule of every rank
  const int stage_ranks = GetParam().ranks / GetParam().pp, tp = GetParam().tp;
  for (int rank = 0; rank < GetParam().ranks; ++rank) {
    if (rank / stage_ranks != GetParam().rank / stage_ranks || rank % tp != GetParam().rank % tp) continue;
    test::Setting other = GetParam();
    other.rank = rank;
    const MemoryPlan theirs = place(test::schedule_of(other));
    EXPECT_EQ(theirs.offset, plan_.offset) << "rank " << rank;
    EXPECT_EQ(theirs.bytes, plan_.bytes) << "rank " << rank;
  }
}

TEST_P(Placed, TasksTouchWhatWasPlanned) {
  if (GetParam().training) {
    EXPECT_EQ(touched_bytes(schedule_, plan_), plan_.bytes);
  }
}

TEST_P(Placed, CategoriesOfThePersistentPartAddUp) {
  for (std::size_t t = 0; t < tier_count; ++t) {
    std::int64_t sum = 0;
    for (std::int64_t bytes : plan_.by_category[t]) sum += bytes;
    EXPECT_GE(sum, plan_.persistent[t]);
    if (plan_.transient[t] == 0) {
      EXPECT_EQ(sum, plan_.persistent[t]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Grid, Placed, testing::ValuesIn(test::settings()), [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Tensor, Placed, testing::ValuesIn(test::tensor_settings()), [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Context, Placed, testing::ValuesIn(test::context_settings()), [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Pipeline, Placed, testing::ValuesIn(test::pipeline_settings()), [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Orders, Placed, testing::ValuesIn(test::ordered_settings()), [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Experts, Placed, testing::ValuesIn(test::expert_settings()), [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(ExpertsBeside, Placed, testing::ValuesIn(test::experts_beside_settings()),
                         [](const auto& info) { return info.param.name; });

// Units are padded to a multiple of their ranks, and who reads the padding depends on stage, type and what is frozen.
TEST(MemoryPlan, OfFrozenPartsIsWhatIsTouched) {
  std::vector<test::Setting> all;
  for (int ranks = 1; ranks <= 9; ++ranks)
    for (int stage = 0; stage <= 3; ++stage)
      for (const char* frozen : {"lora.rank=2", "model.freeze=[\"layers.*\", \"embedding.*\"]", "model.freeze=[\"head.*\"]",
                                 "model.freeze=[\"layers.0.mlp.*\"]", "model.freeze=[\"layers.?.attention.*\", \"head.weight\"]"})
        for (const char* type : {"fp32", "bf16"})
          for (const char* exact : {"false", "true"})
            all.push_back({.name = fmt::format("{} at stage {} on {} ranks, {}, reproducible {}", frozen, stage, ranks, type, exact),
                           .overrides = {fmt::format("zero.stage={}", stage), frozen, fmt::format("precision.compute={}", type),
                                         fmt::format("run.reproducible={}", exact), fmt::format("batch.global={}", 2 * ranks)},
                           .rank = ranks - 1,
                           .ranks = ranks});
  test::Sample sample;
  for (const std::size_t s : sample.of(all.size(), 60)) {
    const Schedule schedule = test::schedule_of(all[s]);
    const MemoryPlan plan = place(schedule);
    EXPECT_EQ(touched_bytes(schedule, plan), plan.bytes) << all[s].name << ", with " << sample.describe();
  }
}

// Streams of few layers come back before they could leave.
TEST(MemoryPlan, OfDisksThatNothingGoesToIsWhatIsTouched) {
  for (const int layers : {1, 2, 3, 5})
    for (const char* recompute : {"none", "selective", "full"}) {
      const Schedule schedule =
          test::schedule_of({.name = "",
                             .overrides = {fmt::format("model.layers={}", layers), fmt::format("activation.recompute={}", recompute),
                                           "activation.offload=nvme", "zero.offload_optimizer.nvme_path=/local", "run.lanes=threads"}});
      const MemoryPlan plan = place(schedule);
      EXPECT_EQ(touched_bytes(schedule, plan), plan.bytes) << layers << " layers, " << recompute;
    }
}

TEST(MemoryPlan, TheTestFindsAClash) {
  const Schedule schedule = test::schedule_of({.name = "", .overrides = {}});
  MemoryPlan plan = place(schedule);
  const auto a = static_cast<std::size_t>(schedule.find_buffer("layers.0.attention.qkv")),
             b = static_cast<std::size_t>(schedule.find_buffer("stream.1"));
  plan.offset[a] = plan.offset[b];
  EXPECT_NE(clash(schedule, plan), "");
}

/// Buffers of few sizes with lives of all lengths in several sections, so that first fit meets holes of every kind.
Schedule random_schedule(test::Random& random) {
  Schedule s;
  const auto buffers = static_cast<std::size_t>(random(1, 40));
  for (std::size_t b = 0; b < buffers; ++b)
    s.buffers.push_back({fmt::format("b{}", b), Category::activations, random(0, 3) ? Tier::host : Tier::shared,
                         random(0, 6) * plan_alignment / (random(0, 1) ? 1 : 2), random(0, 9) == 0 ? Life::run : Life::section});
  for (auto n = random(1, 3); n > 0; --n) {
    Section section{.name = "s", .tasks = std::vector<Task>(static_cast<std::size_t>(random(1, 33)))};
    const auto last = static_cast<std::int64_t>(section.tasks.size()) - 1;
    for (std::size_t b = 0; b < buffers; ++b) {
      if (random(0, 4) == 0) continue;
      std::int64_t from = random(0, last), to = random(0, last);
      if (random(0, 2) == 0) to = from;
      for (std::int64_t t : {std::min(from, to), std::max(from, to)})
        section.tasks[static_cast<std::size_t>(t)].uses.push_back({static_cast<int>(b), 0, s.buffers[b].bytes, Access::write});
    }
    s.sections.push_back(std::move(section));
  }
  return s;
}

TEST(MemoryPlan, RandomLivesAreFirstFit) {
  test::Random random(3);
  for (int trial = 0; trial < 1000; ++trial) {
    const Schedule schedule = random_schedule(random);
    ASSERT_EQ(place(schedule).offset, first_fit(schedule)) << "trial " << trial;
  }
}

Schedule small_schedule() {
  Schedule s;
  s.buffers = {{"kept", Category::master, Tier::host, 100, Life::run},
               {"a", Category::activations, Tier::host, 5000},
               {"b", Category::workspace, Tier::host, 9000}};
  s.sections = {{"one",
                 {{.name = "make a", .op = Zero{}, .uses = {{1, 0, 5000, Access::write}}},
                  {.name = "use a", .op = Zero{}, .uses = {{1, 0, 5000, Access::read}, {0, 0, 100, Access::write}}},
                  {.name = "make b", .op = Zero{}, .uses = {{2, 0, 9000, Access::write}}}}}};
  s.program(ProgramKind::train).phases = {{0, 1}};
  return s;
}

TEST(MemoryPlan, BuffersOfDifferentTimesShareBytes) {
  const MemoryPlan plan = place(small_schedule());
  EXPECT_EQ(plan.offset, (std::vector<std::int64_t>{0, 4096, 4096}));
  EXPECT_EQ(plan.bytes[static_cast<std::size_t>(Tier::host)], 4096 + 12288);
  EXPECT_EQ(plan.by_category[static_cast<std::size_t>(Tier::host)][static_cast<std::size_t>(Category::activations)], 5000);
}

TEST(MemoryPlan, BuffersOfOneTaskDoNot) {
  Schedule s = small_schedule();
  s.sections[0].tasks[2].uses.push_back({1, 0, 10, Access::read});
  const MemoryPlan plan = place(s);
  EXPECT_NE(plan.offset[1], plan.offset[2]);
}

// Without library and GPU: what cuDNN may need stands in the plan, and what auto may choose too.
TEST(MemoryPlan, CudnnsWorkspaceIsPlanned) {
  const auto workspace = [](const char* attention, bool reproducible) {
    const MemoryPlan plan =
        place(test::schedule_of({.name = "",
                                 .overrides = {"run.device=cuda", "precision.compute=bf16", "batch.sequence_length=262144", "batch.micro=1",
                                               "model.heads=4", "model.width=64", fmt::format("kernels.attention={}", attention),
                                               fmt::format("run.reproducible={}", reproducible)}}));
    return plan.by_category[static_cast<std::size_t>(Tier::device)][static_cast<std::size_t>(Category::workspace)];
  };
  EXPECT_LT(workspace("native", false), workspace("cudnn", false));
  EXPECT_EQ(workspace("auto", false), workspace("cudnn", false));
  EXPECT_EQ(workspace("auto", true), workspace("native", true));
  EXPECT_GT(workspace("cudnn", true), std::int64_t{2} * 4 * 262144 * 262144) << "all pairs of tokens";
}

TEST(MemoryPlan, ReadingBeforeWritingIsADefect) {
  Schedule s = small_schedule();
  s.sections[0].tasks[1] =
      std::exchange(s.sections[0].tasks[0], s.sections[0].tasks[1]);  // std::swap of two variants is a table of all pairs of kinds
  EXPECT_THROW(place(s), Error);
}

/// Written in the first section, read in the last; a loop and a step of another program lie between and after.
Schedule kept_over_sections() {
  const auto writes = [](int buffer) { return Task{.name = "write", .op = Zero{}, .uses = {{buffer, 0, plan_alignment, Access::write}}}; };
  Schedule s;
  for (const char* name : {"kept", "before", "looped", "after", "elsewhere"})
    s.buffers.push_back({name, Category::activations, Tier::host, plan_alignment});
  s.buffers[0].life = Life::program;
  const Task reads_kept{.name = "read", .op = Zero{}, .uses = {{0, 0, plan_alignment, Access::read}}};
  s.sections = {{"begin", {writes(1), writes(0)}}, {"loop", {writes(2)}}, {"end", {reads_kept, writes(3)}}, {"other", {writes(4)}}};
  s.program(ProgramKind::train).phases = {{0}, {1, 5}, {2}};
  s.program(ProgramKind::evaluate).phases = {{3}};
  return s;
}

TEST(MemoryPlan, WhatAProgramKeepsIsFreeBeforeAfterAndElsewhere) {
  const Schedule s = kept_over_sections();
  const std::vector<std::int64_t> at = place(s).offset;
  EXPECT_NE(at[0], at[2]) << "the loop lies between the write and the read";
  for (const std::size_t free : {1, 3, 4}) EXPECT_EQ(at[free], at[0]) << s.buffers[free].name;
}

TEST(MemoryPlan, WhatALoopReadsOfItsOwnPastIsKeptThroughIt) {
  Schedule s = kept_over_sections();
  // The loop writes `kept` after its own write of `looped`, and reads it in the next repetition.
  s.sections[1].tasks.push_back({.name = "write", .op = Zero{}, .uses = {{0, 0, plan_alignment, Access::add}}});
  s.sections[2].tasks.erase(s.sections[2].tasks.begin());
  const std::vector<std::int64_t> at = place(s).offset;
  EXPECT_NE(at[0], at[2]);
  EXPECT_EQ(at[0], at[3]);
}

TEST(MemoryPlan, WhatAProgramReadsBeforeItWritesIsADefect) {
  Schedule s = kept_over_sections();
  s.sections[0].tasks.pop_back();
  EXPECT_THROW(place(s), Error);
}

TEST(MemoryPlan, SlotsNeedALifeLongerThanASection) {
  Schedule s = kept_over_sections();
  s.buffers[2].slots = 2;
  EXPECT_THROW(place(s), Error);
  s.buffers[2].life = Life::program;
  EXPECT_NO_THROW(place(s));
  s.buffers[2].slots = 3;
  EXPECT_THROW(place(s), Error) << "unequal slots";
}

TEST(MemoryPlan, AUseOutsideItsBufferIsADefect) {
  Schedule s = small_schedule();
  s.sections[0].tasks[0].uses[0].offset = 1;
  EXPECT_THROW(place(s), Error);
}

TEST(MemoryPlan, FullRecomputeNeedsTheStreamsAndOneLayer) {
  const std::int64_t L = 32, B = 2, T = 12, C = 32, H = 4, G = 2, D = 8, F = 48, M = B * T, W = (H + 2 * G) * D;  // of the tiny deck, fp32
  const std::int64_t stream = 4 * M * C, rstd = 4 * M, head = 4 * M + 8;
  const std::int64_t attention = 4 * (M * W + M * H * D + B * H * T);  // qkv, context, lse
  const std::int64_t layer = std::max({
      attention + 2 * stream + rstd,                            // recompute attention: the stream inside the layer, normed
      attention + 2 * stream + rstd + 4 * (2 * M * F + M * F),  // backward mlp: the same; gate_up, activated or its gradient
      attention + stream + rstd + 4 * (M * H * D + M * W),      // backward attention: normed; d_context, d_qkv
  });
  for (const std::int64_t every : {1, 2, 4}) {
    const Schedule schedule = test::schedule_of(
        {.name = "",
         .overrides = {fmt::format("model.layers={}", L), "activation.recompute=full", fmt::format("activation.every={}", every)}});
    const std::int64_t planned =
        place(schedule).by_category[static_cast<std::size_t>(Tier::host)][static_cast<std::size_t>(Category::activations)];
    const std::int64_t streams = L / every * stream, d_stream = stream;
    // The other layers of a span have kept what their backward passes read, and the streams that leave them.
    const std::int64_t span = (every - 1) * (attention + 4 * 2 * M * F + 2 * stream);
    EXPECT_EQ(planned, std::max(streams + d_stream + span + layer, (L / every + 1) * stream + d_stream + 2 * stream + rstd + head))
        << every;
  }
}

}  // namespace
}  // namespace tessera::memory_plan_test
