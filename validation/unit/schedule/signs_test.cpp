// Momenta that are reduced as signs (1-bit Adam): what a step before freeze_step does and what one after it, the bytes that go over the
// wire, and what each rank keeps.
#include <gtest/gtest.h>

#include <map>

#include "deck/ramp.hpp"
#include "kernels/signs/signs.hpp"
#include "schedules.hpp"

namespace tessera::signs_test {
namespace {

BuildRequest request_of(std::vector<std::string> overrides, int ranks, int rank, bool frozen) {
  overrides.insert(overrides.end(), {"optimizer.type=onebit_adam", "optimizer.freeze_step=3", "run.steps=9", "zero.stage=0"});
  const Deck deck = test::tiny_deck(overrides, ranks);
  return request_for(deck_in_phase(deck, frozen ? 1 : 0), make_mesh(deck, ranks), rank, Purpose::training);
}

std::vector<Task> tasks_of(const Schedule& schedule, ProgramKind kind) {
  std::vector<Task> tasks;
  for (const auto& phase : schedule.program(kind).phases)
    for (std::int64_t repeat = 0; repeat < phase.repeat; ++repeat) {
      const std::vector<Task>& some = schedule.sections[static_cast<std::size_t>(phase.section)].tasks;
      tasks.insert(tasks.end(), some.begin(), some.end());
    }
  return tasks;
}

const std::string& name_of(const Schedule& schedule, const Use& use) { return schedule.buffers[static_cast<std::size_t>(use.buffer)].name; }

/// Of sums of gradients, and of signs.
struct Traffic {
  double gradients = 0, signs = 0;
  int exchanges = 0, gathers = 0;
};
Traffic traffic_of(const Schedule& schedule) {
  Traffic all;
  for (const Task& task : tasks_of(schedule, ProgramKind::train)) {
    const auto* op = std::get_if<Collective>(&task.op);
    if (op == nullptr || op->dtype == DType::i64) continue;  // scalars
    (op->dtype == DType::u32 ? all.signs : all.gradients) += task.bytes_moved;
    all.exchanges += op->kind == CollectiveKind::all_to_all, all.gathers += op->kind == CollectiveKind::all_gather;
  }
  return all;
}

TEST(Signs, OfAnElementABitGoesEachWayInPlaceOfItsGradient) {
  for (const int ranks : {2, 3, 4})
    for (int rank = 0; rank < ranks; ++rank) {
      SCOPED_TRACE(fmt::format("rank {} of {}", rank, ranks));
      const std::vector<std::string> batch = {fmt::format("batch.global={}", 6 * ranks)};
      const BuildRequest request = request_of(batch, ranks, rank, true);
      const Traffic warm = traffic_of(build_schedule(request_of(batch, ranks, rank, false))), frozen = traffic_of(build_schedule(request));
      double elements = 0, words = 0;
      for (const Unit& unit : request.layout.units) {
        elements += static_cast<double>(unit.elements);
        for (const Slot& slot : unit.slots) words += static_cast<double>(kernels::sign_part(slot.elements, ranks)) / 32 + 1;
      }
      EXPECT_EQ(warm.signs, 0);
      EXPECT_DOUBLE_EQ(warm.gradients, 2 * 4 * elements * (ranks - 1) / ranks) << "all-reduced in fp32";
      EXPECT_EQ(frozen.gradients, 0);
      EXPECT_DOUBLE_EQ(frozen.signs, 2 * 4 * words * (ranks - 1)) << "a word of 32 elements, and a scale a tensor";
      EXPECT_LT(frozen.signs, warm.gradients / 20) << "of tensors this small scales and whole words count";
      const auto units = std::ssize(request.layout.units);
      EXPECT_EQ(frozen.exchanges, units);
      EXPECT_EQ(frozen.gathers, units);
    }
}

/// Of each unit what its own signs take, and what those of its means do. It is state: cleared, saved and loaded as such.
TEST(Signs, WhatTheyTakeIsStateOfTheRank) {
  for (int rank = 0; rank < 3; ++rank) {
    const BuildRequest request = request_of({"batch.global=12"}, 3, rank, true);
    const Schedule frozen = build_schedule(request), warm = build_schedule(request_of({"batch.global=12"}, 3, rank, false));
    std::map<std::string, std::int64_t> kept, expected;
    for (const Held& held : frozen.state) {
      if (!held.own) continue;
      kept[name_of(frozen, held.use)] = held.elements.size();
      EXPECT_EQ(held.use.bytes, 4 * held.elements.size());
      EXPECT_EQ(saved_part(request.layout, held, request.group(axes({Axis::dp}))).size(), held.elements.size());
    }
    for (const Unit& unit : request.layout.units) {
      expected["sign_error." + unit.name] = unit.elements;
      for (const Slot& slot : unit.slots) expected["mean_sign_error." + unit.name] += kernels::sign_part(slot.elements, 3);
    }
    EXPECT_EQ(kept, expected);
    EXPECT_EQ(frozen.state.size(), warm.state.size() + kept.size());
    std::map<std::string, int> packed;
    for (const Task& task : tasks_of(frozen, ProgramKind::train))
      if (std::holds_alternative<PackSigns>(task.op)) ++packed[name_of(frozen, task.uses[1])];
    for (const auto& [name, elements] : kept) EXPECT_EQ(packed[name], 1) << name;
    for (const Task& task : tasks_of(frozen, ProgramKind::publish))
      for (const Use& use : task.uses) EXPECT_FALSE(kept.contains(name_of(frozen, use))) << task.name << " is after a load";
  }
}

/// One rank has nobody to tell: its momentum stays what it is.
TEST(Signs, OfOneRankAreNone) {
  const Schedule schedule = build_schedule(request_of({}, 1, 0, true));
  for (const Task& task : tasks_of(schedule, ProgramKind::train)) {
    EXPECT_FALSE(std::holds_alternative<PackSigns>(task.op) || std::holds_alternative<UnpackSigns>(task.op)) << task.name;
    EXPECT_FALSE(std::holds_alternative<Collective>(task.op)) << task.name;
  }
  for (const Buffer& buffer : schedule.buffers) EXPECT_EQ(buffer.name.find("sign"), std::string::npos) << buffer.name;
}

/// All of its own gradient is what a rank counts in the norm, and what its momentum takes.
TEST(Signs, NormsAreOfAllOfEachRanksOwnGradient) {
  for (int rank = 0; rank < 3; ++rank) {
    const BuildRequest request = request_of({"batch.global=12"}, 3, rank, true);
    std::int64_t counted = 0, all = 0;
    for (const Task& task : tasks_of(build_schedule(request), ProgramKind::train))
      if (const auto* op = std::get_if<SumSquares>(&task.op)) counted += op->count;
    for (const Unit& unit : request.layout.units) all += unit.elements;
    EXPECT_EQ(counted, all);
  }
}

TEST(Signs, PlansAreWhatIsTouchedAndTheStateStaysWhereItLies) {
  for (const int ranks : {1, 2, 3, 5})
    for (const char* type : {"precision.compute=fp32", "precision.compute=bf16"})
      for (const char* more : {"run.seed=1", "model.freeze=[\"layers.0.mlp.*\"]", "lora.rank=2", "checkpoint.async=true"}) {
        SCOPED_TRACE(fmt::format("{} ranks, {}, {}", ranks, type, more));
        std::vector<std::vector<std::int64_t>> places;
        for (const bool frozen : {false, true}) {
          const Schedule schedule =
              build_schedule(request_of({type, more, fmt::format("batch.global={}", 2 * ranks)}, ranks, ranks - 1, frozen));
          const MemoryPlan plan = place(schedule);
          EXPECT_EQ(touched_bytes(schedule, plan), plan.bytes);
          places.emplace_back();
          for (const Held& held : schedule.state) places.back().push_back(plan.offset[static_cast<std::size_t>(held.use.buffer)]);
        }
        places[1].resize(places[0].size());  // then comes what a rank has of its own
        EXPECT_EQ(places[0], places[1]);
      }
}

}  // namespace
}  // namespace tessera::signs_test
