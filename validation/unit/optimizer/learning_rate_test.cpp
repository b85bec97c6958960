// Learning rates at the edges of warmup, decay and run.
#include "optimizer/learning_rate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "../model/random_models.hpp"
#include "base/check.hpp"

namespace tessera::learning_rate_test {
namespace {

constexpr double peak = 3e-4;

LearningRateKeys keys(RateSchedule schedule, std::int64_t warmup, double min_ratio = 0.1, std::int64_t decay = 0) {
  return {.schedule = schedule, .warmup_steps = warmup, .decay_steps = decay, .min_ratio = min_ratio};
}

class EverySchedule : public testing::TestWithParam<RateSchedule> {
 protected:
  LearningRateKeys with_warmup(std::int64_t warmup, double min_ratio = 0.1) const {
    return keys(GetParam(), warmup, min_ratio, GetParam() == RateSchedule::wsd ? 20 : 0);
  }
};

TEST_P(EverySchedule, WarmsUpFromOneShareToThePeak) {
  for (std::int64_t step = 0; step < 10; ++step)
    EXPECT_DOUBLE_EQ(learning_rate_at(with_warmup(10), peak, 100, step), peak * static_cast<double>(step + 1) / 10) << step;
}

TEST_P(EverySchedule, BeginsAtThePeakWithoutWarmup) { EXPECT_DOUBLE_EQ(learning_rate_at(with_warmup(0), peak, 100, 0), peak); }

TEST_P(EverySchedule, NeverRisesAfterTheWarmupAndStaysInItsRange) {
  for (double min_ratio : {0.0, 0.1, 1.0}) {
    double before = peak;
    for (std::int64_t step = 10; step < 130; ++step) {  // beyond the end too
      const double now = learning_rate_at(with_warmup(10, min_ratio), peak, 100, step);
      EXPECT_LE(now, before * (1 + 1e-12)) << step;
      EXPECT_GE(now, min_ratio * peak * (1 - 1e-12)) << step;
      before = now;
    }
  }
}

TEST_P(EverySchedule, EndsAtTheFloorOnTheLastStep) {
  if (GetParam() == RateSchedule::constant) {
    EXPECT_EQ(learning_rate_at(with_warmup(10), peak, 100, 99), peak);
    return;
  }
  for (double min_ratio : {0.0, 0.1, 0.5}) {
    EXPECT_NEAR(learning_rate_at(with_warmup(10, min_ratio), peak, 100, 99), min_ratio * peak, 1e-18);
    EXPECT_GT(learning_rate_at(with_warmup(10, min_ratio), peak, 100, 98), min_ratio * peak) << "the floor is reached too early";
    EXPECT_NEAR(learning_rate_at(with_warmup(10, min_ratio), peak, 100, 500), min_ratio * peak, 1e-18);
  }
}

TEST_P(EverySchedule, ARunThatIsAllWarmupNeverDecays) { EXPECT_DOUBLE_EQ(learning_rate_at(keys(GetParam(), 5), peak, 5, 4), peak); }

TEST_P(EverySchedule, OneStepIsFinite) {
  for (std::int64_t warmup : {0, 1})
    for (std::int64_t decay : {0, 1}) {
      const double rate = learning_rate_at(keys(GetParam(), warmup, 0.1, decay), peak, 1, 0);
      EXPECT_TRUE(std::isfinite(rate));
      EXPECT_GE(rate, 0.1 * peak * (1 - 1e-12));
      EXPECT_LE(rate, peak);
    }
}

/// What DeepSpeed's WarmupLR gives with warmup_min_lr = 0, which it works out as the inverse of log(warmup_num_steps) times log(iteration +
/// 1).
double deepspeed_warmup(std::int64_t warmup_steps, std::int64_t iteration) {
  if (iteration >= std::max<std::int64_t>(2, warmup_steps)) return peak;
  return peak * (1 / std::log(static_cast<double>(std::max<std::int64_t>(2, warmup_steps)))) * std::log(static_cast<double>(iteration + 1));
}

TEST_P(EverySchedule, ALogarithmicWarmupIsDeepSpeeds) {
  for (const std::int64_t warmup : {2, 10, 80}) {
    LearningRateKeys k = with_warmup(warmup);
    k.warmup_type = WarmupType::log;
    EXPECT_EQ(learning_rate_at(k, peak, 100, 0), 0);
    for (std::int64_t step = 1; step < warmup; ++step) {
      EXPECT_NEAR(learning_rate_at(k, peak, 100, step), deepspeed_warmup(warmup, step), 1e-15) << warmup << " " << step;
      EXPECT_GT(learning_rate_at(k, peak, 100, step), learning_rate_at(k, peak, 100, step - 1));
    }
    EXPECT_DOUBLE_EQ(learning_rate_at(k, peak, 100, warmup - 1), peak);
    // After the warmup its shape is forgotten.
    for (std::int64_t step = warmup; step < 100; ++step)
      EXPECT_EQ(learning_rate_at(k, peak, 100, step), learning_rate_at(with_warmup(warmup), peak, 100, step));
  }
  LearningRateKeys one = with_warmup(1);
  one.warmup_type = WarmupType::log;
  EXPECT_EQ(learning_rate_at(one, peak, 100, 0), 0);
}

TEST(LearningRate, ALogarithmicWarmupInNumbers) {
  // log(i) / log(10) of steps 1 to 10.
  const double share[] = {0, 0.30103, 0.477121, 0.60206, 0.69897, 0.778151, 0.845098, 0.90309, 0.954243, 1};
  LearningRateKeys k = keys(RateSchedule::constant, 10);
  k.warmup_type = WarmupType::log;
  for (std::int64_t step = 0; step < 10; ++step) EXPECT_NEAR(learning_rate_at(k, 1.0, 100, step), share[step], 1e-6) << step;
  k.warmup_type = static_cast<WarmupType>(enum_words<WarmupType>.size());
  EXPECT_THROW(learning_rate_at(k, peak, 100, 5), Error);
}

TEST(LearningRate, BiasCorrectionsAreOfTheUpdateOrNone) {
  Deck deck = test::tiny_deck({"optimizer.beta1=0.5", "optimizer.beta2=0.75"});
  EXPECT_EQ(scheduled_update(deck, 0).correction1, 0.5);
  EXPECT_EQ(scheduled_update(deck, 2).correction1, 0.875);
  EXPECT_EQ(scheduled_update(deck, 1).correction2, 1 - 0.75 * 0.75);
  deck.optimizer.bias_correction = false;
  EXPECT_EQ(scheduled_update(deck, 0).correction1, 1);
  EXPECT_EQ(scheduled_update(deck, 5).correction2, 1);
}

INSTANTIATE_TEST_SUITE_P(All, EverySchedule,
                         testing::Values(RateSchedule::cosine, RateSchedule::linear, RateSchedule::constant, RateSchedule::wsd),
                         [](const auto& info) { return std::string(word_of(info.param)); });

TEST(Cosine, IsHalfWayInTheMiddle) {
  EXPECT_DOUBLE_EQ(learning_rate_at(keys(RateSchedule::cosine, 0, 0.2), peak, 101, 50), 0.6 * peak);
  EXPECT_DOUBLE_EQ(learning_rate_at(keys(RateSchedule::cosine, 0, 0.0), peak, 5, 1), peak * 0.5 * (1 + std::sqrt(0.5)));
}

TEST(Linear, FallsByEqualSteps) {
  for (std::int64_t step = 0; step < 11; ++step)
    EXPECT_NEAR(learning_rate_at(keys(RateSchedule::linear, 0, 0.0), 1.0, 11, step), 1 - 0.1 * static_cast<double>(step), 1e-12);
}

TEST(Wsd, StaysThenFallsLinearlyOverTheLastSteps) {
  const auto k = keys(RateSchedule::wsd, 10, 0.0, 20);
  EXPECT_EQ(learning_rate_at(k, 1.0, 100, 79), 1.0);
  for (std::int64_t step = 80; step < 100; ++step)
    EXPECT_NEAR(learning_rate_at(k, 1.0, 100, step), 1 - static_cast<double>(step - 79) / 20, 1e-12) << step;
}

TEST(Wsd, DecayMayBeginRightAfterTheWarmup) {
  const auto k = keys(RateSchedule::wsd, 80, 0.5, 20);
  EXPECT_DOUBLE_EQ(learning_rate_at(k, 1.0, 100, 79), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(k, 1.0, 100, 80), 1 - 0.5 / 20);
}

// What Megatron-LM's --lr-wsd-decay-style leaves of the peak at the quarters of a decay.
TEST(Wsd, DecaysByLineCosinePowerAndRoot) {
  const auto left = [](DecayType type, double floor, std::int64_t step) {
    LearningRateKeys k = keys(RateSchedule::wsd, 10, floor, 4);
    k.decay_type = type;
    return learning_rate_at(k, 1.0, 100, step);
  };
  const std::vector<std::pair<DecayType, std::vector<double>>> quarters = {
      {DecayType::linear, {0.75, 0.5, 0.25}},
      {DecayType::cosine, {0.853553390593, 0.5, 0.146446609407}},
      {DecayType::exponential, {0.681792830507, 0.414213562373, 0.189207115003}},
      {DecayType::minus_sqrt, {0.5, 0.292893218813, 0.133974596216}}};
  ASSERT_EQ(quarters.size(), enum_words<DecayType>.size());
  for (const auto& [type, numbers] : quarters) {
    EXPECT_EQ(left(type, 0, 95), 1);
    EXPECT_EQ(left(type, 0, 9), 1) << "the warmup ends at the peak";
    for (std::int64_t quarter = 0; quarter < 3; ++quarter) {
      const double number = numbers[static_cast<std::size_t>(quarter)];
      EXPECT_NEAR(left(type, 0, 96 + quarter), number, 1e-11) << word_of(type);
      EXPECT_NEAR(left(type, 0.2, 96 + quarter), 0.2 + 0.8 * number, 1e-11) << "of the way to the floor";
    }
    for (const std::int64_t step : {99, 120}) EXPECT_NEAR(left(type, 0.2, step), 0.2, 1e-15) << word_of(type);
  }
  EXPECT_THROW(left(static_cast<DecayType>(enum_words<DecayType>.size()), 0, 97), Error);
}

TEST(LearningRate, AnUnknownScheduleIsADefect) {
  EXPECT_THROW(learning_rate_at(keys(static_cast<RateSchedule>(enum_words<RateSchedule>.size()), 0), peak, 10, 5), Error);
}

}  // namespace
}  // namespace tessera::learning_rate_test
