// DeepSpeed's schedules by what their documentation says, and by numbers of its classes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <numbers>
#include <set>
#include <sstream>

#include "../deck/small_deck.hpp"
#include "optimizer/learning_rate.hpp"

namespace tessera::deepspeed_schedules_test {
namespace {

Deck deck_of(const std::vector<std::string>& overrides) { return require_deck(parse_small(overrides)); }
double rate_of(const Deck& deck, std::int64_t updates) { return scheduled_update(deck, updates).learning_rate; }

// Lines "deck OVERRIDES", each before lines "UPDATES RATE BETA1 BETA2" of that deck, which validation/parity/check_schedules.py has
// written. Where another libm rounds log and cos otherwise, the last bits may differ.
TEST(DeepSpeedSchedules, GiveTheNumbersOfItsClasses) {
  std::ifstream table(TESSERA_RATES);
  std::set<RateSchedule> seen;
  Deck deck;
  int rows = 0;
  for (std::string line, word; std::getline(table, line);) {
    std::istringstream words(line);
    words >> word;
    if (word == "deck") {
      std::vector<std::string> overrides;
      while (words >> word) overrides.push_back(word);
      deck = deck_of(overrides);
      seen.insert(deck.learning_rate.schedule);
      continue;
    }
    const ScheduledUpdate update = scheduled_update(deck, std::stoll(word));
    for (const double ours : {update.learning_rate, update.beta1, update.beta2}) {
      ASSERT_TRUE(words >> word);
      EXPECT_DOUBLE_EQ(ours, std::strtod(word.c_str(), nullptr)) << line << " of " << word_of(deck.learning_rate.schedule);
    }
    ++rows;
  }
  EXPECT_EQ(rows, 15 * 21);
  EXPECT_EQ(seen.size(), 5u);
}

const std::vector<std::string> base = {"run.steps=1000", "optimizer.learning_rate=1e-3"};
Deck with(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), base.begin(), base.end());
  return deck_of(overrides);
}

// The first update has the rate of a scheduler that has not begun, and the second that of its iteration 0.
TEST(DeepSpeedSchedules, AWarmupLeavesTwoUpdatesAtItsBegin) {
  for (const char* schedule : {"warmup_lr", "warmup_decay_lr"})
    for (const char* type : {"log", "linear"}) {
      const Deck deck = with({fmt::format("learning_rate.schedule={}", schedule), fmt::format("learning_rate.warmup_type={}", type),
                              "learning_rate.warmup_steps=100", "learning_rate.warmup_min_lr=1e-5"});
      EXPECT_EQ(rate_of(deck, 0), 1e-5);
      EXPECT_EQ(rate_of(deck, 1), 1e-5);
      for (std::int64_t update = 2; update <= 100; ++update) {
        const double share = type == std::string("log") ? std::log(update) / std::log(100) : static_cast<double>(update - 1) / 100;
        EXPECT_NEAR(rate_of(deck, update), 1e-5 + (1e-3 - 1e-5) * share, 1e-17) << update;
      }
      EXPECT_NEAR(rate_of(deck, 101), 1e-3, 1e-17);
    }
  const Deck cosine =
      with({"learning_rate.schedule=warmup_cosine_lr", "learning_rate.warmup_steps=100", "learning_rate.warmup_min_ratio=0.5"});
  EXPECT_EQ(rate_of(cosine, 0), 0) << "not the ratio that the warmup begins with";
  EXPECT_EQ(rate_of(cosine, 1), 0.5e-3);
}

TEST(DeepSpeedSchedules, TwoStepsAreTheShortestWarmup) {
  for (const char* steps : {"0", "1", "2"}) {
    const Deck deck = with({"learning_rate.schedule=warmup_lr", fmt::format("learning_rate.warmup_steps={}", steps)});
    EXPECT_EQ(rate_of(deck, 1), 0);
    EXPECT_EQ(rate_of(deck, 2), 0.5e-3);
    EXPECT_EQ(rate_of(deck, 3), 1e-3);
  }
}

TEST(DeepSpeedSchedules, FallToTheirFloorAndStayThere) {
  const Deck linear =
      with({"learning_rate.schedule=warmup_decay_lr", "learning_rate.warmup_steps=100", "learning_rate.warmup_min_lr=1e-5"});
  EXPECT_NEAR(rate_of(linear, 551), 1e-5 + 0.99e-3 / 2, 1e-17);
  for (const std::int64_t update : {1001, 1500}) EXPECT_EQ(rate_of(linear, update), 1e-5);
  const Deck cosine = with({"learning_rate.schedule=warmup_cosine_lr", "learning_rate.warmup_steps=100", "learning_rate.min_ratio=0.2"});
  for (std::int64_t update = 101; update <= 1000; ++update)
    EXPECT_NEAR(rate_of(cosine, update),
                1e-3 * (0.2 + 0.8 * 0.5 * (1 + std::cos(std::numbers::pi * static_cast<double>(update - 100) / 900))), 1e-17);
  for (const std::int64_t update : {1000, 1500}) EXPECT_NEAR(rate_of(cosine, update), 0.2e-3, 1e-17);
}

const std::vector<std::string> cycle = {"learning_rate.schedule=one_cycle",
                                        "learning_rate.one_cycle.min_lr=1e-4",
                                        "learning_rate.one_cycle.first_step_size=100",
                                        "learning_rate.one_cycle.second_step_size=300",
                                        "learning_rate.one_cycle.min_mom=0.7",
                                        "learning_rate.one_cycle.max_mom=0.95"};
Deck cycle_with(const std::vector<std::string>& overrides) {
  std::vector<std::string> all = cycle;
  all.insert(all.end(), overrides.begin(), overrides.end());
  return with(all);
}

TEST(DeepSpeedSchedules, ACycleRisesFallsAndCyclesTheMomentumTheOtherWay) {
  const Deck deck = cycle_with({});
  for (std::int64_t update = 0; update <= 400; ++update) {
    const double scale = update <= 100 ? static_cast<double>(update) / 100 : static_cast<double>(400 - update) / 300;
    const ScheduledUpdate at = scheduled_update(deck, update);
    EXPECT_NEAR(at.learning_rate, 1e-4 + 9e-4 * scale, 1e-16) << update;
    EXPECT_EQ(at.beta2, 0.99);
    EXPECT_NEAR(at.beta1, update > 0 ? 0.95 - 0.25 * scale : 0.7, 1e-13) << update << ": before the first step it is the least";
  }
  EXPECT_EQ(rate_of(deck, 999), 1e-4) << "without a decay it stays";
  EXPECT_EQ(scheduled_update(deck, 999).beta1, 0.95);
  EXPECT_EQ(scheduled_update(deck, 999).correction1, 1 - std::pow(0.95, 1000)) << "of the update's own beta";
  const Deck kept = deck_of({"run.steps=1000", "learning_rate.schedule=one_cycle", "learning_rate.one_cycle.cycle_momentum=false",
                             "optimizer.beta1=0.6", "optimizer.beta2=0.7"});
  for (const std::int64_t update : {0, 50, 900}) {
    EXPECT_EQ(scheduled_update(kept, update).beta1, 0.6);
    EXPECT_EQ(scheduled_update(kept, update).beta2, 0.7);
  }
}

TEST(DeepSpeedSchedules, ACycleDecaysAfterItsEnd) {
  const Deck deck = cycle_with({"learning_rate.one_cycle.decay_step_size=50", "learning_rate.one_cycle.decay_lr_rate=0.5",
                                "learning_rate.one_cycle.decay_mom_rate=0.004"});
  EXPECT_NEAR(rate_of(deck, 450), 1e-4 / 1.5, 1e-18);
  EXPECT_NEAR(rate_of(deck, 900), 1e-4 / 6, 1e-18);
  EXPECT_NEAR(scheduled_update(deck, 900).beta1, 0.95 * 1.04, 1e-15);
}

TEST(DeepSpeedSchedules, StairsAreFlat) {
  const Deck deck = cycle_with({"learning_rate.one_cycle.first_stair_count=4", "learning_rate.one_cycle.second_stair_count=3"});
  for (std::int64_t update = 0; update <= 400; ++update) {
    // A fall is a rise seen from its end.
    const double scale =
        update <= 100 ? std::floor(static_cast<double>(update) / 25) / 4 : std::floor(static_cast<double>(400 - update) / 100) / 3;
    EXPECT_NEAR(rate_of(deck, update), 1e-4 + 9e-4 * scale, 1e-17) << update;
  }
  const Deck range = with({"learning_rate.schedule=lr_range_test", "learning_rate.lr_range_test.step_size=10",
                           "learning_rate.lr_range_test.step_rate=2", "learning_rate.lr_range_test.staircase=true"});
  for (const auto& [update, times] : {std::pair(0, 1), std::pair(9, 1), std::pair(10, 3), std::pair(19, 3), std::pair(25, 5)})
    EXPECT_NEAR(rate_of(range, update), 1e-3 * times, 1e-17) << update;
}

TEST(DeepSpeedSchedules, ARangeTestRisesFromItsFirstUpdate) {
  const Deck deck = with({"learning_rate.schedule=lr_range_test", "learning_rate.lr_range_test.step_size=10"});
  for (const std::int64_t update : {0, 1, 5, 10, 900})
    EXPECT_NEAR(rate_of(deck, update), 1e-3 * (1 + static_cast<double>(update) / 10), 1e-15) << update;
}

// A share of the run's steps is a warmup of all schedules that have one.
TEST(DeepSpeedSchedules, ShareAWarmupByItsRatio) {
  for (const char* schedule : {"cosine", "linear", "constant", "wsd", "warmup_lr", "warmup_decay_lr", "warmup_cosine_lr"}) {
    std::vector<std::string> overrides = {fmt::format("learning_rate.schedule={}", schedule), "learning_rate.warmup_ratio=0.05"};
    if (schedule == std::string("wsd")) overrides.emplace_back("learning_rate.decay_steps=10");
    const Deck by_ratio = with(overrides);
    overrides[1] = "learning_rate.warmup_steps=50";
    EXPECT_EQ(by_ratio, with(overrides)) << schedule;
    EXPECT_LT(rate_of(by_ratio, 45), 0.95e-3) << schedule;
    EXPECT_NEAR(rate_of(by_ratio, 51), 1e-3, 2e-6) << schedule;
  }
}

}  // namespace
}  // namespace tessera::deepspeed_schedules_test
