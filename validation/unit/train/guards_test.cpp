// What guards ask of an engine: a step that moves nothing, where a value that is not finite comes from, copies that differ.
#include <gtest/gtest.h>

#include <cmath>

#include "../model/random_models.hpp"
#include "../plan_alone.hpp"
#include "train/engine/engine.hpp"

namespace tessera::guards_test {
namespace {

void fill_batch(Engine& engine, const Deck& deck, std::uint32_t seed) {
  test::Random random(seed);
  for (std::int64_t m = 0; m < engine.accumulation(); ++m) {
    for (auto& token : engine.tokens(m)) token = static_cast<std::int32_t>(random(0, deck.model.vocab - 1));
    for (auto& token : engine.targets(m)) token = static_cast<std::int32_t>(random(0, deck.model.vocab - 1));
  }
}

Engine engine_of(const Deck& deck) { return Engine(test::plan_alone(deck, Purpose::training, 2)); }

TEST(Rehearsal, ComputesTheStepAndMovesNothing) {
  for (const char* dtype : {"precision.compute=fp32", "precision.compute=bf16", "precision.compute=fp16"}) {
    SCOPED_TRACE(dtype);
    const Deck deck = test::tiny_deck({"batch.global=4", "run.reproducible=true", "guards.spike=skip", "guards.skip_limit=1",
                                       "guards.window=8", "model.experts=2", "model.router_balance=bias", dtype});
    Engine alone = engine_of(deck), twice = engine_of(deck);
    alone.initialise_weights(), twice.initialise_weights();
    for (std::uint32_t step = 1; step <= 6; ++step) {
      fill_batch(alone, deck, step), fill_batch(twice, deck, step);
      const StepReport rehearsed = twice.step({.rehearsal = true});
      const Engine::OwnSums first = twice.own_sums();
      const StepReport one = alone.step(), two = twice.step();
      const Engine::OwnSums second = twice.own_sums();
      EXPECT_EQ(rehearsed.loss, two.loss);
      EXPECT_EQ(rehearsed.grad_norm, two.skipped ? rehearsed.grad_norm : two.grad_norm);
      EXPECT_EQ(std::memcmp(&first.loss, &second.loss, sizeof first.loss), 0);
      EXPECT_EQ(std::memcmp(&first.squares, &second.squares, sizeof first.squares), 0);
      EXPECT_EQ(one.loss, two.loss);
      EXPECT_EQ(one.grad_norm, two.grad_norm);
      EXPECT_EQ(alone.saved_run_values(), twice.saved_run_values());
    }
    for (const Parameter& p : alone.layout().table) EXPECT_EQ(alone.weight_of(p.name), twice.weight_of(p.name)) << p.name;
  }
}

TEST(Rehearsal, SeesAWeightThatChangesBetween) {
  const Deck deck = test::tiny_deck({"batch.global=4", "run.reproducible=true"});
  Engine engine = engine_of(deck);
  engine.initialise_weights();
  fill_batch(engine, deck, 1);
  const StepReport before = engine.step({.rehearsal = true});
  auto* weight = static_cast<float*>(const_cast<void*>(engine.weight_address("layers.0.mlp.w_down")));
  *weight += 0.25f;
  const StepReport after = engine.step();
  EXPECT_NE(before.loss_sum, after.loss_sum);
}

/// What the engine finds after a step with one number put into its place.
std::optional<Finding> found_with(const std::function<void(Engine&)>& spoil, bool passed_over) {
  const Deck deck = test::tiny_deck({"batch.global=4", fmt::format("guards.skip_limit={}", passed_over ? 2 : 0)});
  Engine engine = engine_of(deck);
  engine.initialise_weights();
  fill_batch(engine, deck, 1);
  EXPECT_FALSE(engine.find_not_finite()) << "all is finite";
  spoil(engine);
  const StepReport report = engine.step();
  EXPECT_EQ(report.passed_over, passed_over);
  EXPECT_EQ(report.not_finite, !passed_over);
  EXPECT_TRUE(engine.own_sums().not_finite);
  const std::int64_t cursor = engine.run_values().sample_cursor;
  const std::optional<Finding> found = engine.find_not_finite();
  EXPECT_EQ(engine.run_values().sample_cursor, cursor) << "to look moves nothing";
  return found;
}

TEST(Witness, NamesTheFirstTaskThatWritesWhatIsNotFinite) {
  for (const bool passed_over : {false, true}) {
    const auto weight = [](const char* name) {
      return [=](Engine& engine) { *static_cast<float*>(const_cast<void*>(engine.weight_address(name))) = std::nanf(""); };
    };
    const std::optional<Finding> down = found_with(weight("layers.1.mlp.w_down"), passed_over);
    ASSERT_TRUE(down);
    EXPECT_EQ(down->task, "forward layers.1.mlp");
    EXPECT_EQ(down->value, "the stream");
    EXPECT_EQ(down->text, "nan");
    // The loss of one row alone: only the gradients that come back from it are bad.
    const std::optional<Finding> row = found_with([](Engine& engine) { engine.row_weights(0)[1] = INFINITY; }, passed_over);
    ASSERT_TRUE(row);
    EXPECT_NE(row->task.find("head"), std::string::npos) << row->task;
    EXPECT_NE(row->value.find("gradient"), std::string::npos) << row->value;
  }
}

TEST(StateNotFinite, NamesTheTensor) {
  const Deck deck = test::tiny_deck({"batch.global=4"});
  Engine engine = engine_of(deck);
  engine.initialise_weights();
  EXPECT_EQ(engine.state_not_finite(), "");
  engine.set_weights([](const Parameter& p, std::int64_t first, std::span<float> out) {
    std::ranges::fill(out, 0.5f);
    if (p.name == "layers.1.attention.wo" && first <= 3 && first + std::ssize(out) > 3)
      out[static_cast<std::size_t>(3 - first)] = -INFINITY;
  });
  EXPECT_EQ(engine.state_not_finite(), "master of layers.1.attention.wo, element 3 of the tensor, is -inf");
}

TEST(LeaveOut, MovesTheCursorAndCounts) {
  const Deck deck = test::tiny_deck({"batch.global=4"});
  Engine engine = engine_of(deck);
  engine.initialise_weights();
  engine.leave_out(12);
  fill_batch(engine, deck, 1);
  engine.step();
  EXPECT_EQ(engine.run_values().sample_cursor, 16);
  EXPECT_EQ(engine.run_values().samples_left_out, 12);
}

CopyDigest copy(const char* what, std::uint64_t content) { return {.what = what, .digest = {.high = 0, .low = content}}; }

TEST(CompareCopies, FindsWhoDiffers) {
  const std::vector<std::vector<CopyDigest>> same = {{copy("a", 1), copy("b", 2)}, {copy("a", 1)}, {copy("b", 2), copy("c", 3)}};
  EXPECT_TRUE(compare_copies(same).empty());
  const std::vector<DifferentCopies> found = compare_copies({{copy("a", 1), copy("b", 5)}, {copy("a", 1)}, {copy("a", 9), copy("b", 6)}});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].what, "a");
  EXPECT_EQ(found[0].ranks, (std::vector<std::vector<int>>{{0, 1}, {2}}));
  EXPECT_EQ(found[1].what, "b");
  EXPECT_EQ(found[1].ranks, (std::vector<std::vector<int>>{{0}, {2}}));
}

TEST(AgreedCopies, WhatIsReadBackMustBeWhatWasCompared) {
  const std::vector<CopyDigest> copies = {{"master of embedding", hash_text("a")}, {"weights of embedding", hash_text("b")}};
  std::vector<CopyDigest> turned = copies;
  turned[1].digest.low ^= 1;
  AgreedCopies agreed;
  EXPECT_FALSE(agreed.differ(7, turned)) << "no step was compared";
  agreed.note(7, copies);
  EXPECT_FALSE(agreed.differ(7, copies));
  EXPECT_TRUE(agreed.differ(7, turned));
  EXPECT_TRUE(agreed.differ(7, {copies[0]})) << "a copy is missing";
  EXPECT_FALSE(agreed.differ(8, turned)) << "another step";
  agreed.note(7, turned);  // made again, with other data
  EXPECT_FALSE(agreed.differ(7, turned));
  EXPECT_TRUE(agreed.differ(7, copies));
}

TEST(AgreedCopies, OnlyTheNewestAreKept) {
  const std::vector<CopyDigest> copies = {{"master", hash_text("a")}}, others = {{"master", hash_text("b")}};
  AgreedCopies agreed;
  const auto kept = static_cast<std::int64_t>(AgreedCopies::kept);
  for (std::int64_t step = 0; step <= kept; ++step) agreed.note(step, copies);
  EXPECT_FALSE(agreed.differ(0, others));
  EXPECT_TRUE(agreed.differ(1, others));
  EXPECT_TRUE(agreed.differ(kept, others));
}

}  // namespace
}  // namespace tessera::guards_test
