// Schedules as built: what every stage gathers, reduces and keeps, and a digest that tells ranks apart that would not agree.
#include "schedule/build/builder.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "kernels/parallel.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/plan/memory_plan.hpp"
#include "schedules.hpp"

namespace tessera::builder_test {
namespace {

Hash128 hash_of(const std::vector<std::string>& overrides, int rank = 0, int ranks = 4, std::int64_t evaluation = 2) {
  return test::schedule_of({.name = "", .overrides = overrides, .rank = rank, .ranks = ranks, .evaluation = evaluation}).hash();
}

class Built : public testing::TestWithParam<test::Setting> {
 protected:
  BuildRequest request_ = test::request_of(GetParam());
  Schedule schedule_ = build_schedule(request_);
};

TEST_P(Built, TheDigestIsTheSameOnAllRanks) {
  for (int rank = 0; rank < GetParam().ranks; ++rank) {
    test::Setting other = GetParam();
    other.rank = rank;
    EXPECT_EQ(test::schedule_of(other).hash(), schedule_.hash()) << "rank " << rank;
  }
}

// Nothing of a text grows with its capacity but the caches of every layer and the table of rotations.
TEST(Text, CachesAreAllThatAPassLeavesAndThePlanCountsThem) {
  const auto text = [](std::int64_t prompt, std::int64_t capacity) {
    return test::schedule_of({.name = "", .overrides = {}, .training = false, .text = {.prompt = prompt, .capacity = capacity}});
  };
  constexpr std::int64_t L = 2, C = 32, H = 4, G = 2, D = 8, F = 48;  // of the tiny deck, fp32
  constexpr auto host = static_cast<std::size_t>(Tier::host);
  const Schedule small = text(3, 1024), large = text(3, 2048), longer = text(300, 2048);
  const MemoryPlan plan = place(small);
  EXPECT_EQ(plan.by_category[host][static_cast<std::size_t>(Category::caches)], L * 2 * 4 * 1024 * G * D);
  EXPECT_EQ(place(large).bytes[host] - plan.bytes[host], L * 2 * 4 * 1024 * G * D + 4 * 1024 * D);
  // A prompt is a forward pass: what lives at once is at most stream in and out, normed, gate and up, activated, and statistics of a row.
  EXPECT_LE(place(longer).by_category[host][static_cast<std::size_t>(Category::activations)] -
                place(large).by_category[host][static_cast<std::size_t>(Category::activations)],
            4 * 297 * (2 * C + std::max(C + 3 * F + 1, C + (H + 2 * G) * D + H * D + H + 1)));
  for (const Schedule* schedule : {&small, &large, &longer}) {
    EXPECT_FALSE(schedule->has(ProgramKind::train) || schedule->has(ProgramKind::evaluate));
    std::size_t segments = 0;
    for (const Tower& tower : schedule->towers) segments += tower.segments.size();
    EXPECT_EQ(segments,
              2 * schedule->sections[static_cast<std::size_t>(schedule->program(ProgramKind::token).phases[0].section)].tasks.size());
  }
  // Of a layer with a window they hold what it sees, however long the text.
  const auto caches = [](std::int64_t capacity) {
    const Schedule schedule =
        test::schedule_of({.name = "",
                           .overrides = {"model.layers=3", "model.pattern=LGO",
                                         R"(model.kinds=[{ name = "L", window = 128 }, { name = "G" }, { name = "O", window = 5120 }])"},
                           .training = false,
                           .text = {.prompt = 300, .capacity = capacity}});
    return place(schedule).by_category[host][static_cast<std::size_t>(Category::caches)];
  };
  EXPECT_EQ(caches(1024), 2 * 4 * (128 + 1024 + 1024) * G * D);
  EXPECT_EQ(caches(8192), 2 * 4 * (128 + 8192 + 5120) * G * D);
  EXPECT_FALSE(text(1, 9).has(ProgramKind::prompt)) << "one token needs no pass of its own";
  EXPECT_THROW(text(10, 9), Error);
}

TEST_P(Built, BufferNamesAreUniqueAndUsed) {
  std::set<std::string> names;
  for (const Buffer& b : schedule_.buffers) EXPECT_TRUE(names.insert(b.name).second) << b.name;
  std::set<int> used;
  for (const Section& section : schedule_.sections)
    for (const Task& task : section.tasks) {
      EXPECT_FALSE(task.name.empty());
      for (const Use& use : task.uses) used.insert(use.buffer);
    }
  for (int b = 0; b < static_cast<int>(schedule_.buffers.size()); ++b)
    if (schedule_.buffers[static_cast<std::size_t>(b)].life != Life::run) {
      EXPECT_TRUE(used.contains(b)) << schedule_.buffers[static_cast<std::size_t>(b)].name;
    }
}

TEST_P(Built, MicroBatchesOfAStepAreAllRun) {
  if (!GetParam().training) return;
  std::int64_t micro = 0;
  for (const auto& phase : schedule_.program(ProgramKind::train).phases)
    for (const Task& task : schedule_.sections[static_cast<std::size_t>(phase.section)].tasks)
      if (task.name == "forward embedding") micro += phase.repeat;
  EXPECT_EQ(micro * GetParam().ranks * request_.deck.batch.micro, request_.deck.batch.global);
}

const Collective* collective_of(const Task& task, CollectiveKind kind) {
  const auto* collective = std::get_if<Collective>(&task.op);
  return collective && collective->kind == kind ? collective : nullptr;
}

TEST_P(Built, PhasesNumberTheMicroBatches) {
  for (const Program* program : {&schedule_.program(ProgramKind::train), &schedule_.program(ProgramKind::evaluate)}) {
    std::int64_t next = 0;
    for (const auto& phase : program->phases) {
      if (!phase.micro) continue;
      EXPECT_EQ(*phase.micro, next);
      next += phase.repeat;
    }
    if (!program->phases.empty()) {
      EXPECT_EQ(next, program == &schedule_.program(ProgramKind::train) ? accumulation_steps(request_.deck, GetParam().ranks)
                                                                        : GetParam().evaluation);
    }
  }
}

/// Elements that a section moves on a lane, by what the task is called.
std::map<std::string, std::int64_t> moved(const Schedule& schedule, Lane lane) {
  std::map<std::string, std::int64_t> result;
  for (const auto& phase : schedule.program(ProgramKind::train).phases)
    for (const Task& task : schedule.sections[static_cast<std::size_t>(phase.section)].tasks) {
      if (task.lane != lane) continue;
      if (const auto* collective = std::get_if<Collective>(&task.op)) result[task.name] += collective->count * phase.repeat;
    }
  return result;
}

TEST_P(Built, EachStageMovesWhatItMust) {
  if (!GetParam().training) return;
  const auto stage = request_.deck.zero.stage;
  const std::int64_t micros = accumulation_steps(request_.deck, GetParam().ranks);
  auto gathers = moved(schedule_, Lane::gather), reduces = moved(schedule_, Lane::reduce);
  if (GetParam().ranks == 1) {
    EXPECT_TRUE(gathers.empty() && reduces.empty());
    return;
  }
  for (int u = 0; u < static_cast<int>(request_.layout.units.size()); ++u) {
    const Unit& unit = request_.layout.units[static_cast<std::size_t>(u)];
    const std::int64_t S = request_.layout.shard_elements(u);
    EXPECT_EQ(reduces["all-reduce " + unit.name], stage == 0 ? unit.elements : 0) << unit.name;
    EXPECT_EQ(reduces["reduce " + unit.name], stage == 0 ? 0 : stage == 1 ? S : micros * S) << unit.name;
    const bool whole = stage < 3 || unit.persistent;
    EXPECT_EQ(gathers["gather " + unit.name + " (updated)"], stage > 0 && whole ? S : 0) << unit.name;
    EXPECT_EQ(gathers["gather " + unit.name + " (forward)"] + gathers["gather " + unit.name + " (backward)"] > 0, !whole) << unit.name;
  }
}

TEST_P(Built, CollectivesRespectTheBucket) {
  for (const Section& section : schedule_.sections)
    for (const Task& task : section.tasks) {
      if (const Collective* r = collective_of(task, CollectiveKind::reduce_scatter)) {
        EXPECT_TRUE(r->count * GetParam().ranks <= request_.deck.zero.reduce_bucket_size || r->count == shard_block) << task.name;
      }
      if (const Collective* r = collective_of(task, CollectiveKind::all_reduce)) {
        EXPECT_TRUE(r->count <= request_.deck.zero.reduce_bucket_size || r->count == shard_block) << task.name;
      }
    }
}

TEST_P(Built, TheOptimizerTouchesEveryOwnedElementOnce) {
  if (!GetParam().training) return;
  std::vector<int> seen(request_.layout.table.size(), 0);
  std::vector<std::int64_t> count(request_.layout.table.size(), 0);
  for (int rank = 0; rank < GetParam().ranks; ++rank) {
    test::Setting other = GetParam();
    other.rank = rank;
    const Schedule schedule = test::schedule_of(other);
    for (const auto& phase : schedule.program(ProgramKind::train).phases)
      for (const Task& task : schedule.sections[static_cast<std::size_t>(phase.section)].tasks)
        if (const auto* step = std::get_if<OptimizerStep>(&task.op))
          for (std::size_t i = 0; i < step->pieces.size(); ++i) {
            const auto row = static_cast<std::size_t>(step->pieces[i].parameter);
            count[row] += step->pieces[i].elements;
            EXPECT_EQ(step->rates[i].weight_decay > 0, request_.layout.table[row].decay) << request_.layout.table[row].name;
          }
  }
  const std::int64_t copies = request_.deck.zero.stage == 0 ? GetParam().ranks : 1;
  for (std::size_t row = 0; row < count.size(); ++row)
    EXPECT_EQ(count[row], copies * request_.layout.table[row].shape.elements()) << request_.layout.table[row].name;
}

/// Tasks of a program that update a unit, in order.
std::vector<std::string> updates(const Schedule& schedule, const Program& program) {
  std::vector<std::string> names;
  for (const auto& phase : program.phases)
    for (const Task& task : schedule.sections[static_cast<std::size_t>(phase.section)].tasks)
      if (std::holds_alternative<OptimizerStep>(task.op)) names.push_back(task.name);
  return names;
}

TEST_P(Built, AnUpdateThatAStepLeavesIsMadeOnceBeforeItsWeightsAreRead) {
  if (!GetParam().training) return;
  EXPECT_EQ(schedule_.updates_late(), request_.deck.zero.offload_optimizer.device != OffloadDevice::none);
  if (!schedule_.updates_late()) {
    EXPECT_FALSE(schedule_.has(ProgramKind::first));
    return;
  }
  std::vector<std::string> with = updates(schedule_, schedule_.program(ProgramKind::train)),
                           alone = updates(schedule_, schedule_.program(ProgramKind::update));
  EXPECT_TRUE(updates(schedule_, schedule_.program(ProgramKind::first)).empty());
  std::ranges::sort(with), std::ranges::sort(alone);
  EXPECT_EQ(with, alone);
  std::map<int, std::size_t> written, read;  // last and first task of the step, by buffer
  std::size_t now = 0;
  for (const auto& phase : schedule_.program(ProgramKind::train).phases)
    for (const Task& task : schedule_.sections[static_cast<std::size_t>(phase.section)].tasks) {
      ++now;
      for (const Use& use : task.uses) {
        if (!schedule_.buffers[static_cast<std::size_t>(use.buffer)].name.starts_with("parameters.")) continue;
        if (use.access != Access::read)
          written[use.buffer] = now;
        else if (!task.name.ends_with("(updated)") && !task.name.starts_with("read for optimizer"))
          read.try_emplace(use.buffer, now);
      }
    }
  EXPECT_EQ(written.size(), request_.layout.units.size());
  for (auto [buffer, at] : written) EXPECT_LT(at, read.at(buffer)) << schedule_.buffers[static_cast<std::size_t>(buffer)].name;
}

TEST_P(Built, StateLiesInItsBuffers) {
  std::set<std::pair<std::string, int>> rows;
  for (const Held& held : schedule_.state) {
    EXPECT_TRUE(rows.insert({held.group, held.unit}).second) << held.group << " of unit " << held.unit << " twice";
    EXPECT_EQ(held.use.bytes, 4 * held.elements.size());
    EXPECT_LE(held.use.offset + held.use.bytes, schedule_.buffers[static_cast<std::size_t>(held.use.buffer)].bytes);
    EXPECT_EQ(held.elements.size(), request_.deck.zero.stage == 0 || GetParam().ranks == 1
                                        ? request_.layout.units[static_cast<std::size_t>(held.unit)].elements
                                        : request_.layout.shard_elements(held.unit));
  }
  EXPECT_EQ(rows.size(), GetParam().training ? 3 * request_.layout.units.size() : 0);
}

TEST_P(Built, PrintsEveryProgramAndTask) {
  const std::string text = print_schedule(schedule_);
  for (const ProgramRow& row : program_rows)
    EXPECT_EQ(text.find(fmt::format("program {}\n", row.name)) != std::string::npos, schedule_.has(row.kind)) << row.name;
  for (const Section& section : schedule_.sections)
    for (const Task& task : section.tasks) EXPECT_NE(text.find(task.name), std::string::npos) << task.name;
}

INSTANTIATE_TEST_SUITE_P(Grid, Built, testing::ValuesIn(test::settings()), [](const auto& info) { return info.param.name; });

TEST(Frozen, UnitsHaveACopyInTheComputeTypeAndNothingElse) {
  for (const int stage : {0, 1, 2, 3})
    for (const bool bf16 : {false, true}) {
      const int ranks = 2;
      const BuildRequest request =
          test::request_of({.name = "frozen",
                            .overrides = {fmt::format("zero.stage={}", stage), "zero.param_persistence_threshold=40",
                                          fmt::format("precision.compute={}", bf16 ? "bf16" : "fp32"),
                                          R"(model.freeze=["embedding.*", "layers.0.*", "layers.1.attention.norm"])"},
                            .ranks = ranks});
      const Schedule schedule = build_schedule(request);
      int frozen = 0;
      for (std::size_t u = 0; u < request.layout.units.size(); ++u) {
        const Unit& unit = request.layout.units[u];
        if (!unit.frozen) continue;
        ++frozen;
        const int parameters = schedule.find_buffer("parameters." + unit.name);
        ASSERT_GE(parameters, 0);
        const std::int64_t kept = unit.elements / (stage == 3 && !unit.persistent ? ranks : 1);
        EXPECT_EQ(schedule.buffers[static_cast<std::size_t>(parameters)].bytes, kept * (bf16 ? 2 : 4)) << unit.name;
        for (const Buffer& buffer : schedule.buffers)
          if (buffer.name.ends_with("." + unit.name)) {
            EXPECT_TRUE(buffer.category == Category::parameters) << buffer.name;
          }
        for (const Section& section : schedule.sections)
          for (const Task& task : section.tasks)
            for (const Use& use : task.uses)
              if (use.buffer == parameters && use.access != Access::read) {
                EXPECT_EQ(section.name, "publish") << task.name;
              }
        const auto held = std::ranges::count(schedule.state, static_cast<int>(u), &Held::unit);
        EXPECT_EQ(held, 1) << unit.name;
      }
      EXPECT_EQ(frozen, 3);  // the norm alone in one of its layer, or of the small tensors of all
    }
}

TEST(ScheduleHash, TellsApartWhatRanksMustAgreeOn) {
  const std::vector<std::vector<std::string>> variants = {
      {},
      {"zero.stage=1"},
      {"zero.stage=2"},
      {"zero.stage=3"},
      {"zero.stage=3", "zero.param_persistence_threshold=0"},
      {"zero.stage=3", "zero.param_persistence_threshold=0", "zero.prefetch_bucket_size=0"},
      {"zero.stage=3", "zero.param_persistence_threshold=0", "zero.max_reuse_distance=0"},
      {"zero.stage=3", "zero.param_persistence_threshold=0", "zero.max_live_parameters=12000"},
      {"zero.stage=3", "zero.param_persistence_threshold=1100"},
      {"zero.stage=2", "zero.reduce_bucket_size=2048"},
      {"zero.stage=2", "zero.allgather_bucket_size=2048"},
      {"zero.sub_group_size=512"},
      {"batch.global=40"},
      {"batch.global=48", "batch.micro=4"},
      {"batch.sequence_length=16"},
      {"model.layers=3"},
      {"model.width=40"},
      {"model.ff_width=56"},
      {"model.vocab=64"},
      {"model.heads=2"},
      {"model.tied=true"},
      {"model.qk_norm=true"},
      {"precision.compute=bf16"},
      {"run.reproducible=true"},
  };
  std::map<std::string, std::size_t> seen;
  for (std::size_t i = 0; i < variants.size(); ++i) {
    auto overrides = variants[i];
    if (overrides.empty() || overrides[0].find("batch.global") != 0) overrides.insert(overrides.begin(), "batch.global=24");
    const auto [it, fresh] = seen.try_emplace(hash_of(overrides).hex(), i);
    EXPECT_TRUE(fresh) << fmt::format("{}", fmt::join(variants[i], " ")) << " is taken for "
                       << fmt::format("{}", fmt::join(variants[it->second], " "));
  }
  EXPECT_FALSE(hash_of({"batch.global=24"}) == hash_of({"batch.global=24"}, 0, 3)) << "ranks";
  EXPECT_FALSE(hash_of({"batch.global=24"}) == hash_of({"batch.global=24"}, 0, 4, 3)) << "evaluation micro-batches";
}

TEST(ScheduleHash, TellsApartCutsOfTheSameNumber) {
  // Both buckets cut every shard into as many collectives, of other sizes: ranks that mix them would wait for ever.
  const std::vector<std::string> common = {"batch.global=24", "zero.stage=2", "model.vocab=300"};
  std::map<std::string, std::vector<std::size_t>> by_cuts;
  auto with = [&](std::int64_t bucket) {
    auto overrides = common;
    overrides.push_back(fmt::format("zero.reduce_bucket_size={}", bucket));
    return test::schedule_of({.name = "", .overrides = overrides, .ranks = 4});
  };
  auto counts = [](const Schedule& schedule) {
    std::vector<std::int64_t> sizes;
    for (const Task& task : schedule.sections[1].tasks)
      if (const Collective* r = collective_of(task, CollectiveKind::reduce_scatter)) sizes.push_back(r->count);
    return sizes;
  };
  int same_number = 0;
  for (std::int64_t a = 1; a < 12; ++a)
    for (std::int64_t b = a + 1; b < 12; ++b) {
      const Schedule x = with(a * 1024), y = with(b * 1024);
      if (counts(x).size() != counts(y).size() || counts(x) == counts(y)) continue;
      ++same_number;
      EXPECT_FALSE(x.hash() == y.hash()) << a << " and " << b;
    }
  EXPECT_GT(same_number, 0) << "the model has no such cuts";
}

TEST(ScheduleHash, IsTheSameForRanksOfDifferentThreads) {
  kernels::plan_for_threads(1);
  const Schedule one = test::schedule_of({.name = "", .overrides = {}, .rank = 0, .ranks = 2});
  kernels::plan_for_threads(2);
  const Schedule two = test::schedule_of({.name = "", .overrides = {}, .rank = 1, .ranks = 2});
  kernels::plan_for_threads(1);
  ASSERT_NE(place(one).bytes, place(two).bytes) << "threads should change the workspace";
  EXPECT_EQ(one.hash(), two.hash());
}

TEST(Schedules, ReductionsThatAddHaveTheirWorkspacePlannedOnGpus) {
  for (const char* device : {"host", "cuda"}) {
    const Schedule schedule = test::schedule_of(
        {.name = "", .overrides = {fmt::format("run.device={}", device), "zero.stage=2", "batch.global=24"}, .rank = 1, .ranks = 2});
    int adding = 0;
    for (const Section& section : schedule.sections)
      for (const Task& task : section.tasks)
        if (const Collective* r = collective_of(task, CollectiveKind::reduce_scatter)) {
          const bool has_workspace = r->accumulate && device == std::string("cuda");
          EXPECT_EQ(task.uses[2].bytes, has_workspace ? r->count * 4 : 0) << device << ": " << task.name;
          if (has_workspace) {
            EXPECT_EQ(schedule.buffers[static_cast<std::size_t>(task.uses[2].buffer)].tier, Tier::device);
          }
          adding += r->accumulate;
        }
    EXPECT_GT(adding, 0);
  }
}

// A write of a part of a block reads the block first.
TEST(Schedules, PiecesOnADiskAreWholeBlocks) {
  for (const char* type : {"fp32", "bf16"}) {
    const Schedule schedule =
        test::schedule_of({.name = "",
                           .overrides = {fmt::format("precision.compute={}", type), "zero.stage=3", "zero.offload_optimizer.device=nvme",
                                         "zero.offload_param.device=nvme", "zero.offload_optimizer.nvme_path=/tmp", "nvme.block_size=4096",
                                         "zero.param_persistence_threshold=0", "zero.sub_group_size=3000"}});
    int moves = 0;
    for (const Section& section : schedule.sections)
      for (const Task& task : section.tasks)
        for (const Use& use : task.uses) {
          const Buffer& buffer = schedule.buffers[static_cast<std::size_t>(use.buffer)];
          if (buffer.tier != Tier::nvme || use.bytes == 0) continue;
          EXPECT_EQ(use.offset % 4096, 0) << type << ": " << task.name;
          EXPECT_TRUE(use.bytes % 4096 == 0 || use.offset + use.bytes == buffer.bytes) << type << ": " << task.name;
          moves += use.offset > 0;
        }
    EXPECT_GT(moves, 0) << "no state was cut";
  }
}

TEST(LayoutFor, OnlyStage3KeepsSmallTensorsApart) {
  for (int stage = 0; stage <= 3; ++stage)
    for (int ranks : {1, 4}) {
      const Deck deck = test::tiny_deck({fmt::format("zero.stage={}", stage), "batch.global=8"}, ranks);
      const Layout layout = layout_for(deck, Mesh{{1, 1, ranks, 1, 1, 1}}, 0);
      EXPECT_EQ(layout.units.back().persistent, stage == 3 && ranks > 1);
      EXPECT_EQ(layout.shards, ranks);
    }
}

}  // namespace
}  // namespace tessera::builder_test
