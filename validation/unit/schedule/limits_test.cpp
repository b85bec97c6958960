// What a plan may take, when it takes most, and what is offered where it does not fit.
#include "schedule/plan/limits.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <sstream>

#include "../sample.hpp"
#include "schedule/plan/peak.hpp"
#include "schedule/plan/recompute_choice.hpp"
#include "schedule/plan/remedies.hpp"
#include "schedule/plan/step_cost.hpp"
#include "schedule/run/communicators.hpp"
#include "schedule/trace/memory_by_part.hpp"
#include "schedules.hpp"

namespace tessera::limits_test {
namespace {

constexpr auto gpu = static_cast<std::size_t>(MemoryKind::device), host = static_cast<std::size_t>(MemoryKind::host);

TEST(Limits, AreThoseOfTheDeck) {
  const auto limits = [](const std::vector<std::string>& overrides, int ranks) {
    return stated_limits(test::tiny_deck(overrides, ranks), ranks);
  };
  EXPECT_FALSE(limits({}, 1)[gpu] || limits({}, 1)[host]);
  EXPECT_EQ(limits({"memory.host=3 GiB"}, 2)[host]->bytes, std::int64_t{3} << 30);
  const auto on_gpu = limits({"run.device=cuda", "memory.device=80 GB"}, 2), alone = limits({"run.device=cuda", "memory.device=80 GB"}, 1);
  EXPECT_EQ(on_gpu[gpu]->bytes, 80000000000 - GpuReserve{}.bytes({.communicators = 1}));
  EXPECT_EQ(alone[gpu]->bytes - on_gpu[gpu]->bytes, GpuReserve{}.communicator) << "one rank has no NCCL";
  EXPECT_FALSE(on_gpu[host]);
  EXPECT_NE(on_gpu[gpu]->source.find("memory.device (74.51 GiB) without 2.18 GiB for CUDA, NCCL and libraries"), std::string::npos);
  // On host ranks both keys are limits of the same memory.
  EXPECT_EQ(limits({"run.device=host", "memory.device=2 GiB", "memory.host=3 GiB"}, 2)[host]->source, "memory.device");
  EXPECT_EQ(limits({"run.device=host", "memory.device=4 GiB", "memory.host=3 GiB"}, 2)[host]->source, "memory.host");
  EXPECT_EQ(limits({"run.device=cuda", "memory.device=1 GiB"}, 1)[gpu]->bytes, 0) << "less than the reserve";
}

// NCCL's memory goes by their number, which the mesh tells without a schedule.
TEST(Limits, TheCommunicatorsOfAMeshAreThoseOfItsSchedules) {
  struct Layout {
    std::vector<std::string> keys;
    int ranks;
    bool replicates = false;
  };
  const Layout layouts[] = {
      {{}, 2},
      {{"mesh.tp=2"}, 4},
      {{"mesh.cp=2"}, 4},
      {{"mesh.ep=2", "model.experts=4", "model.experts_per_token=2", "model.expert_ff_width=16"}, 4},
      {{"mesh.pp=2", "model.tied=true"}, 4},
      {{"mesh.pp=4", "model.tied=true"}, 4},
      {{"mesh.pp=2", "pipeline.schedule=interleaved"}, 4},
      {{"mesh.replicate=2"}, 4, true},
      {{"mesh.replicate=4"}, 4, true},
      {{"mesh.tp=2", "mesh.pp=2"}, 8},
  };
  for (const Layout& layout : layouts)
    for (const int stage : {0, 1, 2, 3}) {
      if (stage == 0 && layout.replicates) continue;
      std::vector<std::string> keys = layout.keys;
      keys.insert(keys.end(), {"run.device=cuda", "batch.global=8", "model.layers=4", fmt::format("zero.stage={}", stage)});
      const Deck deck = test::tiny_deck(keys, layout.ranks);
      int most = 0;
      for (int rank = 0; rank < layout.ranks; ++rank) {
        const WantedCommunicators wanted =
            wanted_communicators(build_schedule(request_for(deck, make_mesh(deck, layout.ranks), rank, Purpose::training)));
        most = std::max(most, static_cast<int>(wanted.groups.size() + wanted.links.size()));
      }
      EXPECT_EQ(communication_of(deck, layout.ranks).communicators, most)
          << fmt::format("{} on {} ranks", fmt::join(keys, " "), layout.ranks);
    }
}

constexpr auto pinned = static_cast<std::size_t>(MemoryKind::pinned);

// What is pinned is the host's memory too, and has a limit of its own.
TEST(Limits, PinnedMemoryIsAPartOfTheHosts) {
  const Deck deck = test::tiny_deck({"run.device=cuda", "memory.pinned=1 MiB", "memory.host=1 GiB"});
  const MemoryLimits limits = stated_limits(deck, 2);
  EXPECT_EQ(limits[pinned]->bytes, 1 << 20);
  EXPECT_EQ(limits[pinned]->source, "memory.pinned");
  TierBytes needed{};
  needed[static_cast<std::size_t>(Tier::host)] = 100, needed[static_cast<std::size_t>(Tier::pinned)] = (1 << 20) + 1;
  ASSERT_EQ(shortfalls(needed, limits).size(), 1u);
  EXPECT_EQ(shortfalls(needed, limits)[0].text(),
            "the plan needs 1.00 MiB of the host's memory pinned on each rank, but memory.pinned is 1.00 MiB: 1 B too much");
  EXPECT_EQ(bytes_of(needed, MemoryKind::host), 100 + (1 << 20) + 1);
  EXPECT_EQ(memory_bytes(needed), bytes_of(needed, MemoryKind::host)) << "and counts once";
}

TEST(Limits, OfWhatIsFoundOnAHostAutoLeavesSome) {
  const MemoryLimits found{MemoryLimit{800, "a GPU"}, MemoryLimit{800, "the node"}};
  const MemoryLimits left = with_room_left(found, {});
  EXPECT_EQ(left[gpu]->bytes, 800) << "there is a reserve already";
  EXPECT_EQ(left[host]->bytes, 700);
  EXPECT_EQ(left[host]->source, "seven eighths of the node");
  EXPECT_EQ(with_room_left(found, {std::nullopt, MemoryLimit{800, "memory.host"}})[host]->bytes, 800) << "what is stated is meant";
}

// Where nobody has said what kernels have of a host's memory, what they use counts as the host's.
TEST(Limits, WhatKernelsUseOnHostRanksThatOffloadIsTheHosts) {
  TierBytes needed{};
  needed[static_cast<std::size_t>(Tier::device)] = 100, needed[static_cast<std::size_t>(Tier::host)] = 50;
  const auto lacks = [&](std::vector<std::string> keys) {
    keys.insert(keys.end(), {"zero.stage=1", "zero.offload_optimizer.device=host", "memory.host=120 B"});
    const Deck deck = test::tiny_deck(keys);
    const std::vector<Shortfall> found = shortfalls(deck, needed, stated_limits(deck, 2));
    return found.empty() ? std::int64_t{0} : found.front().needed;
  };
  EXPECT_EQ(lacks({"run.device=host"}), 150);
  EXPECT_EQ(lacks({"run.device=host", "memory.device=110 B"}), 0);
  EXPECT_EQ(lacks({"run.device=cuda", "memory.device=10 GB"}), 0);
}

TEST(Limits, AShortfallIsNamedByItsKind) {
  TierBytes needed{};
  needed[static_cast<std::size_t>(Tier::device)] = 100, needed[static_cast<std::size_t>(Tier::host)] = 50;
  needed[static_cast<std::size_t>(Tier::pinned)] = 25, needed[static_cast<std::size_t>(Tier::shared)] = 5;
  const auto kinds = [&](std::int64_t of_gpu, std::int64_t of_host) {
    std::string text;
    for (const Shortfall& s : shortfalls(needed, {MemoryLimit{of_gpu, "a"}, MemoryLimit{of_host, "b"}})) text += s.text() + "\n";
    return text;
  };
  EXPECT_EQ(kinds(100, 80), "");
  EXPECT_EQ(kinds(99, 80), "the plan needs 100 B of the device on each rank, but a is 99 B: 1 B too much\n");
  EXPECT_EQ(kinds(100, 79), "the plan needs 80 B of the host on each rank, but b is 79 B: 1 B too much\n");
  EXPECT_TRUE(shortfalls(needed, {}).empty()) << "nothing is known";
}

std::int64_t live_at(const Schedule& schedule, Tier tier, const std::string& task_name, const std::string& section_name) {
  // Counted by hand: a buffer lives at a task when the section uses it there, or before it and after it. Pieces of a unit share a name: the
  // most of them counts.
  const auto& section = *std::ranges::find(schedule.sections, section_name, &Section::name);
  std::int64_t most = 0;
  for (auto at = section.tasks.begin(); at != section.tasks.end(); ++at) {
    if (at->name != task_name) continue;
    std::int64_t sum = 0;
    for (std::size_t b = 0; b < schedule.buffers.size(); ++b) {
      const Buffer& buffer = schedule.buffers[b];
      const auto uses = [&](const Task& t) {
        return std::ranges::any_of(t.uses, [&](const Use& u) { return u.buffer == static_cast<int>(b); });
      };
      const bool lives =
          buffer.life == Life::run || (std::any_of(section.tasks.begin(), at + 1, uses) && std::any_of(at, section.tasks.end(), uses));
      if (buffer.tier == tier && lives) sum += round_up(buffer.bytes, buffer.alignment);
    }
    most = std::max(most, sum);
  }
  return most;
}

TEST(Peaks, AreTheLargestMomentAndItsBuffers) {
  for (const auto& setting : test::settings()) {
    const Schedule schedule = test::schedule_of(setting);
    const MemoryPlan plan = place(schedule);
    for (const Tier tier : {Tier::device, Tier::host, Tier::shared}) {
      const Peak peak = peak_of(schedule, tier);
      EXPECT_LE(peak.bytes, plan.bytes[static_cast<std::size_t>(tier)]) << setting.name;
      EXPECT_GE(peak.bytes, plan.persistent[static_cast<std::size_t>(tier)]) << setting.name;
      std::int64_t sum = 0;
      for (const Peak::Part& part : peak.parts) sum += part.bytes;
      EXPECT_EQ(sum, peak.bytes) << setting.name;
      if (peak.task.empty()) continue;
      EXPECT_EQ(live_at(schedule, tier, peak.task, peak.section), peak.bytes) << setting.name << " " << peak.task;
      for (const Section& section : schedule.sections)
        for (const Task& task : section.tasks)
          if (section.name != "publish") {
            EXPECT_LE(live_at(schedule, tier, task.name, section.name), peak.bytes) << setting.name << " " << task.name;
          }
    }
  }
}

TEST(Peaks, OfEachPartOfAStepAreThoseOfItsTasks) {
  for (const auto& setting : test::settings()) {
    const Schedule schedule = test::schedule_of(setting);
    const MemoryByPart memory = memory_by_part(schedule);
    for (const Tier tier : {Tier::device, Tier::host, Tier::shared}) {
      std::array<std::int64_t, time_part_count> most{};
      for (const Program::Phase& phase : schedule.program(ProgramKind::train).phases) {
        const Section& section = schedule.sections[static_cast<std::size_t>(phase.section)];
        for (const Task& task : section.tasks) {
          std::int64_t& of = most[static_cast<std::size_t>(part_of(task, schedule))];
          of = std::max(of, live_at(schedule, tier, task.name, section.name));
        }
      }
      for (const TimePartRow& part : time_parts) {
        const auto p = static_cast<std::size_t>(part.part);
        EXPECT_EQ(memory[p][static_cast<std::size_t>(tier)], most[p]) << setting.name << " " << part.name << " " << name_of(tier);
      }
    }
  }
}

class RemediesOf : public ::testing::Test {
 protected:
  /// A model of which activations are the largest part.
  static BuildRequest request(std::vector<std::string> more = {}, int ranks = 2) {
    std::vector<std::string> overrides{"model.layers=6",  "model.width=64",           "model.ff_width=256", "batch.micro=4",
                                       "batch.global=16", "batch.sequence_length=64", "zero.stage=1"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return test::request_of({.name = "", .overrides = overrides, .ranks = ranks});
  }
  static MemoryLimits limit(const BuildRequest& request, double share) {
    const std::int64_t bytes = bytes_of(place(build_schedule(request)).bytes, MemoryKind::host);
    return {std::nullopt, MemoryLimit{static_cast<std::int64_t>(share * static_cast<double>(bytes)), "a limit"}};
  }
};

/// What a user would do with a remedy: its words as overrides and ranks.
TierBytes planned_as_said(const BuildRequest& request, const std::vector<std::string>& base, const std::string& change,
                          const MemoryLimits& limits) {
  std::vector<std::string> overrides = base;
  int ranks = request.data.size;
  std::istringstream words(change);
  for (std::string word; words >> word;) {
    if (word == "--ranks")
      words >> ranks;
    else
      overrides.push_back(word);
  }
  BuildRequest changed = test::request_of({.name = "", .overrides = overrides, .ranks = ranks});
  settle_recompute(changed, limits);
  return place(build_schedule(changed)).bytes;
}

TEST_F(RemediesOf, FitWhenTheyAreDoneAsTheySay) {
  std::set<std::string> said;
  // Two micro-batches a rank, and one, of which sums may be in bf16 unless another change makes more of them.
  for (const auto& [batch, share] : {std::pair{"batch.global=16", 0.95},
                                     {"batch.global=16", 0.8},
                                     {"batch.global=16", 0.6},
                                     {"batch.global=16", 0.4},
                                     {"batch.global=8", 0.95},
                                     {"batch.global=8", 0.6}}) {
    const std::vector<std::string> base{"model.layers=6",           "model.width=64", "model.ff_width=256", "batch.micro=4", batch,
                                        "batch.sequence_length=64", "zero.stage=1"};
    const BuildRequest r = request({batch});
    const MemoryLimits limits = limit(r, share);
    const Remedies remedies = find_remedies(r, limits);
    ASSERT_GE(remedies.found.size(), 1u) << share;
    ASSERT_LE(remedies.found.size(), 3u);
    for (const Remedy& remedy : remedies.found) {
      const TierBytes bytes = planned_as_said(r, base, remedy.change, limits);
      EXPECT_EQ(bytes, remedy.bytes) << remedy.change;
      EXPECT_LE(bytes_of(bytes, MemoryKind::host), limits[host]->bytes) << remedy.change;
      EXPECT_FALSE(remedy.cost.empty());
      said.insert(remedy.change.substr(0, remedy.change.find('=')));
      if (remedy.change.starts_with("precision.gradients")) {
        EXPECT_NE(remedy.cost.find("other numbers"), std::string::npos) << remedy.cost;
      }
    }
  }
  EXPECT_GE(said.size(), 2u) << "not always the same key";
  EXPECT_TRUE(said.contains("precision.gradients"));
}

TEST_F(RemediesOf, ACheaperOneIsNotLeftOut) {
  const BuildRequest r = request();
  const MemoryLimits limits = limit(r, 0.9);
  const Remedies remedies = find_remedies(r, limits);
  ASSERT_FALSE(remedies.found.empty());
  // Stage 2 or 3, selective or full, half a micro-batch: whatever of these fits costs no less than the first.
  const auto price = [&](const BuildRequest& of) {
    const StepCost cost = step_cost(build_schedule(of)), now = step_cost(build_schedule(r));
    return cost.flops - now.flops + 50 * (cost.bytes_moved - now.bytes_moved);
  };
  const auto changed = [&](const std::string& change) {
    std::vector<std::string> overrides;
    std::istringstream words(change);
    for (std::string word; words >> word;) overrides.push_back(word);
    BuildRequest of = request(overrides);
    settle_recompute(of, limits);
    return of;
  };
  const double first = price(changed(remedies.found[0].change));
  int fitting = 0;
  for (const char* other : {"zero.stage=2", "zero.stage=3", "activation.recompute=selective", "activation.recompute=full",
                            "activation.recompute=auto", "batch.micro=2", "batch.micro=1"}) {
    const BuildRequest of = changed(other);
    if (!shortfalls(place(build_schedule(of)).bytes, limits).empty()) continue;
    ++fitting;
    EXPECT_GE(price(of), first) << other << " against " << remedies.found[0].change;
  }
  EXPECT_GE(fitting, 2);
}

// A change that the deck's own rules refuse is no advice. Decks are drawn over keys that bind others.
TEST_F(RemediesOf, PassTheRulesOfDecks) {
  const std::vector<std::vector<std::string>> kinds{{"optimizer.type=onebit_adam", "optimizer.freeze_step=10", "zero.stage=0"},
                                                    {"optimizer.type=muon"},
                                                    {"optimizer.type=adam8bit"},
                                                    {"optimizer.type=adafactor"},
                                                    {"lora.rank=2"},
                                                    {"zero.stage=0"},
                                                    {"zero.stage=3", "zero.quantized_weights=true"},
                                                    {"checkpoint.async=true", "checkpoint.neighbour_every=2"},
                                                    {"guards.digest_every=4"}};
  const std::vector<std::string> more{"activation.recompute=full", "activation.offload=host", "batch.global=8",
                                      "zero.offload_optimizer.device=host", "precision.compute=bf16"};
  std::mt19937_64 draw(test::Sample::seed());
  int tried = 0, found = 0;
  for (std::size_t k = 0; k < kinds.size() * static_cast<std::size_t>(test::Sample::cases(2, 20)); ++k) {
    std::vector<std::string> base{"model.layers=6",  "model.width=64",           "model.ff_width=256", "batch.micro=4",
                                  "batch.global=16", "batch.sequence_length=64", "zero.stage=1"};
    base.insert(base.end(), kinds[k % kinds.size()].begin(), kinds[k % kinds.size()].end());
    if (k >= kinds.size()) base.push_back(more[draw() % more.size()]);
    if (!parse_deck_text(test::tiny_deck_text, "tiny.toml", base, 2).faults.empty()) continue;
    ++tried;
    SCOPED_TRACE(fmt::format("{}", fmt::join(base, " ")));
    const BuildRequest r = test::request_of({.name = "", .overrides = base, .ranks = 2});
    const MemoryLimits limits = limit(r, 0.5);
    for (const Remedy& remedy : find_remedies(r, limits).found) {
      EXPECT_EQ(planned_as_said(r, base, remedy.change, limits), remedy.bytes) << remedy.change;
      ++found;
    }
  }
  EXPECT_GE(tried, static_cast<int>(kinds.size()) - 2);
  EXPECT_GE(found, 6);
}

// Of each kind of memory that lacks, what takes bytes from it is among the changes, and plans as it says.
TEST_F(RemediesOf, MoveWhatLacksWhereThereIsRoom) {
  struct Case {
    std::vector<std::string> more;
    MemoryKind lacking;
    double share;
    const char* change;  ///< that is among them
    const char* cost;
  };
  // Of state, and little else.
  const std::vector<std::string> on_gpu{
      "run.device=cuda",         "zero.stage=3",         "zero.param_persistence_threshold=0", "model.width=128", "model.ff_width=512",
      "batch.sequence_length=8", "nvme.block_size=4096", "zero.prefetch_bucket_size=0"};
  const Case cases[] = {
      {{}, MemoryKind::device, 0.9, "zero.offload_optimizer.device=host", "more moved by each rank"},
      {{}, MemoryKind::device, 0.85, "zero.offload_optimizer.device=host zero.offload_param.device=host", "more moved by each rank"},
      {{"zero.offload_optimizer.device=host"}, MemoryKind::device, 0.97, "zero.offload_param.device=host", "more moved by each rank"},
      {{"zero.offload_optimizer.device=host"},
       MemoryKind::host,
       0.7,
       "zero.offload_optimizer.device=nvme zero.offload_optimizer.nvme_path=/local",
       "of which /local is an example"},
      {{"zero.offload_optimizer.device=host", "zero.offload_optimizer.nvme_path=/disk"},
       MemoryKind::host,
       0.7,
       "zero.offload_optimizer.device=nvme",
       "more moved by each rank"},
      {{"zero.offload_optimizer.device=host"}, MemoryKind::pinned, 0.5, "zero.offload_optimizer.pin_memory=false", "do not overlap with"},
      {{"activation.recompute=full", "activation.every=2", "model.width=64", "model.ff_width=256", "batch.sequence_length=64"},
       MemoryKind::device,
       0.99,
       "activation.recompute=auto activation.every=1",
       ""},
  };
  for (const Case& c : cases) {
    std::vector<std::string> more = on_gpu;
    more.insert(more.end(), c.more.begin(), c.more.end());
    const BuildRequest r = request(more);
    MemoryLimits limits;
    const std::int64_t needed = bytes_of(place(build_schedule(r)).bytes, c.lacking);
    limits[static_cast<std::size_t>(c.lacking)] = MemoryLimit{static_cast<std::int64_t>(c.share * static_cast<double>(needed)), "a limit"};
    bool found = false;
    for (const Remedy& remedy : find_remedies(r, limits, 1000).found) {
      std::vector<std::string> base{"model.layers=6",  "model.width=64",           "model.ff_width=256", "batch.micro=4",
                                    "batch.global=16", "batch.sequence_length=64", "zero.stage=1"};
      base.insert(base.end(), more.begin(), more.end());
      EXPECT_EQ(planned_as_said(r, base, remedy.change, limits), remedy.bytes) << remedy.change;
      EXPECT_TRUE(shortfalls(remedy.bytes, limits).empty()) << remedy.change;
      if (remedy.change != c.change) continue;
      found = true;
      EXPECT_NE(remedy.cost.find(c.cost), std::string::npos) << remedy.cost;
    }
    EXPECT_TRUE(found) << c.change;
  }
}

// Ranks of the host that begin to offload have no more memory than before.
TEST_F(RemediesOf, OfferDisksToRanksOfTheHost) {
  const BuildRequest r =
      request({"model.layers=12", "model.width=128", "model.ff_width=512", "batch.sequence_length=8", "nvme.block_size=4096",
               "zero.stage=3", "zero.param_persistence_threshold=0", "zero.prefetch_bucket_size=0", "zero.sub_group_size=8192"});
  const MemoryLimits limits = limit(r, 0.9);
  bool found = false;
  for (const Remedy& remedy : find_remedies(r, limits, 1000).found) {
    if (!remedy.change.starts_with("zero.offload_optimizer.device=nvme")) continue;
    found = true;
    EXPECT_LE(memory_bytes(remedy.bytes), limits[host]->bytes) << remedy.change;
    EXPECT_GT(bytes_of(remedy.bytes, MemoryKind::nvme), 0);
  }
  EXPECT_TRUE(found);
}

TEST_F(RemediesOf, SayThatThereIsNoneAndWhatTheLeastIs) {
  const BuildRequest r = request();
  const Remedies remedies = find_remedies(r, limit(r, 0.001));
  EXPECT_TRUE(remedies.found.empty());
  const std::string text = print_remedies(remedies, r.deck);
  for (const char* part : {"activation.recompute", "zero.stage", "batch.micro", "the least"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_LT(bytes_of(remedies.least, MemoryKind::host), bytes_of(place(build_schedule(r)).bytes, MemoryKind::host));
  EXPECT_GT(bytes_of(remedies.least, MemoryKind::host), 0);
}

}  // namespace
}  // namespace tessera::limits_test
