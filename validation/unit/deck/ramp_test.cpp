// Phases of a run: which step is of which, and how many samples steps take.
#include "deck/ramp.hpp"

#include <gtest/gtest.h>

#include "small_deck.hpp"

namespace tessera::ramp_test {
namespace {

const std::string ramp =
    "batch.ramp=[{ until_step = 3, global = 8, sequence_length = 8 }, { until_step = 4, sequence_length = 16 }, { until_step = 9, global = "
    "12 }]";

Deck ramped() {
  const ParsedDeck parsed = parse_small({ramp, "evaluate.batches=3"});
  EXPECT_EQ(faults_of(parsed), "");
  return parsed.deck;
}

TEST(Ramp, APhaseLastsUntilItsStepIsDone) {
  const Deck deck = ramped();
  ASSERT_EQ(phases_of(deck), 4U);
  const std::size_t phases[] = {0, 0, 0, 1, 2, 2, 2, 2, 2, 3, 3};
  for (std::size_t step = 0; step < std::size(phases); ++step)
    EXPECT_EQ(phase_after(deck, static_cast<std::int64_t>(step)), phases[step]) << step;
  EXPECT_EQ(phase_after(parse_small().deck, 5), 0U);
}

TEST(Ramp, APhaseHasTheBatchThatItNamesAndTheRest) {
  const Deck deck = ramped();
  struct Case {
    std::int64_t global, length, parts, samples, evaluated;
  };
  const Case cases[] = {{8, 8, 4, 2, 12}, {16, 16, 2, 8, 6}, {12, 32, 1, 12, 3}, {16, 32, 1, 16, 3}};
  for (std::size_t k = 0; k < std::size(cases); ++k) {
    const Deck own = deck_in_phase(deck, k);
    EXPECT_EQ(own.batch.global, cases[k].global) << k;
    EXPECT_EQ(own.batch.sequence_length, cases[k].length) << k;
    EXPECT_EQ(own.batch.parts, cases[k].parts) << k;
    EXPECT_EQ(samples_of_step(own.batch), cases[k].samples) << k;
    EXPECT_EQ(own.evaluate.batches, cases[k].evaluated) << "as many tokens";
    EXPECT_TRUE(own.batch.ramp.empty());
    EXPECT_EQ(own.batch.micro, 4);
  }
}

// What is decided of it is decided alike in all phases.
TEST(Ramp, APhaseKnowsTheLastBatch) {
  const Deck deck = ramped(), last = deck_in_phase(deck, 3);
  for (std::size_t k = 0; k < phases_of(deck); ++k) EXPECT_EQ(with_last_batch(deck_in_phase(deck, k)), last) << k;
  const Deck alone = parse_small().deck;
  EXPECT_EQ(with_last_batch(alone), alone);
}

TEST(Ramp, StepsAndSamplesAreCountedOverPhases) {
  for (const Deck& deck : {ramped(), parse_small().deck}) {
    std::int64_t samples = 0;
    for (std::int64_t step = 0; step < 20; ++step) {
      EXPECT_EQ(samples_in(deck, step), samples) << step;
      const std::int64_t taken = samples_of_step(deck_in_phase(deck, phase_after(deck, step)).batch);
      for (std::int64_t n = 1; n <= taken; ++n) EXPECT_EQ(steps_that_take(deck, samples + n), step + 1) << samples + n;
      samples += taken;
    }
    EXPECT_EQ(steps_that_take(deck, 0), 0);
  }
}

// A phase ends with 1-bit Adam's warmup, among those of a ramp or alone.
TEST(Ramp, APhaseEndsAsOneBitAdamFreezes) {
  const Deck alone = parse_small({"optimizer.type=onebit_adam", "optimizer.freeze_step=6"}).deck;
  EXPECT_EQ(ends_of_phases(alone), std::vector<std::int64_t>{6});
  EXPECT_EQ(phase_after(alone, 5), 0U);
  EXPECT_EQ(phase_after(alone, 6), 1U);
  const Deck both = parse_small({ramp, "optimizer.type=onebit_adam", "optimizer.freeze_step=6"}).deck;
  EXPECT_EQ(ends_of_phases(both), (std::vector<std::int64_t>{3, 4, 6, 9}));
  const std::int64_t global[] = {8, 16, 12, 12, 16};
  for (std::size_t k = 0; k < phases_of(both); ++k) {
    const Deck own = deck_in_phase(both, k);
    EXPECT_EQ(own.optimizer.warms_up, k < 3) << k;
    EXPECT_EQ(own.batch.global, global[k]) << k;
    EXPECT_EQ(phases_of(own), 1U);
    EXPECT_EQ(deck_in_phase(own, 0), own);
  }
  EXPECT_EQ(ends_of_phases(parse_small({ramp, "optimizer.type=onebit_adam", "optimizer.freeze_step=4"}).deck),
            (std::vector<std::int64_t>{3, 4, 9}));
  for (const Deck& deck : {alone, both})
    for (std::int64_t step = 0, samples = 0; step < 20; ++step) {
      EXPECT_EQ(samples_in(deck, step), samples) << step;
      samples += samples_of_step(deck_in_phase(deck, phase_after(deck, step)).batch);
    }
}

TEST(Ramp, ARunThatIsOverBeforeItFreezesWarmsUpInOnePhase) {
  for (const char* steps : {"run.steps=6", "run.steps=7"}) {
    const Deck deck = parse_small({"optimizer.type=onebit_adam", "optimizer.freeze_step=6", steps}).deck;
    EXPECT_EQ(deck.optimizer.warms_up, deck.run.steps == 6);
    EXPECT_EQ(phases_of(deck), deck.run.steps == 6 ? 1U : 2U);
    EXPECT_TRUE(deck_in_phase(deck, 0).optimizer.warms_up);
    EXPECT_EQ(parse_deck_text(print_deck(deck), "printed", {}, 0).deck, deck);
  }
}

TEST(Ramp, BelongsToARunsIdentityWhereThereIsOne) {
  EXPECT_NE(deck_identity(ramped()), deck_identity(parse_small().deck));
  EXPECT_EQ(deck_identity(parse_small({"batch.ramp=[]"}).deck), deck_identity(parse_small().deck));
  const Deck deck = ramped();
  EXPECT_EQ(parse_deck_text(print_deck(deck), "printed", {}, 0).deck, deck);
}

TEST(Ramp, ARunThatEndsInItIsTold) {
  const auto notes = [](const char* steps) {
    std::string all;
    for (const std::string& line : parse_small({ramp, steps}).resolved) all += line;
    return all;
  };
  EXPECT_NE(notes("run.steps=9").find("the run ends at step 9, and the last phase of batch.ramp"), std::string::npos);
  EXPECT_EQ(notes("run.steps=10").find("batch.ramp"), std::string::npos);
}

TEST(Ramp, RulesOfABatchHoldInEachPhase) {
  const std::string bf16 =
      faults_of(parse_small({"batch.ramp=[{ until_step = 3, global = 16 }]", "batch.global=8", "precision.gradients=bf16"}, 2));
  EXPECT_NE(bf16.find("batch.ramp: in phase 1: bf16 sums of gradients need one micro-batch a rank"), std::string::npos) << bf16;
  const std::string ring =
      faults_of(parse_small({"batch.ramp=[{ until_step = 3, sequence_length = 2 }]", "mesh.cp=2", "context.method=ring"}, 2));
  EXPECT_NE(ring.find("batch.ramp: in phase 1: with context.method = \"ring\""), std::string::npos) << ring;
}

}  // namespace
}  // namespace tessera::ramp_test
