#include <cmath>
#include <random>

#include "step_cases.hpp"

namespace tessera::kernels::testing::step_test {
namespace {

TEST(Step, IsItsDefinition) {
  for (const StepCase& c : step_cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    expect_by_definition(c, step_on_host(c));
  }
}

TEST(Step, SumsOfAnotherTierJoin) {
  JoinedSums sums;
  host::join_sums({}, &sums.mine, &sums.other);
  JoinedSums::expect_joined(sums.mine);
}

/// DeepSpeed's DynamicLossScaler as its documentation has it: by numbers of steps, not by what is left of them.
struct ScalerByDefinition {
  double scale = 65536;
  std::int64_t window = 1000, hysteresis = 2, left = 2, step = 0, last_overflow = -1;
  bool consecutive = false;
  double minimum = 1;

  bool update(bool overflow) {
    bool goes_on = true;
    if (overflow) {
      if (left == 1)
        goes_on = scale != minimum, scale = std::max(scale / 2, minimum);
      else
        --left;
      last_overflow = step;
    } else {
      if (consecutive) left = hysteresis;
      const std::int64_t good = step - last_overflow - 1;
      if (good > 0 && good % window == 0) left = hysteresis, scale *= 2;
    }
    ++step;
    return goes_on;
  }
};

TEST(LossScale, FollowsItsDefinitionThroughDrawnOverflows) {
  std::mt19937_64 random(11);
  for (int drawn = 0; drawn < 200; ++drawn) {
    ScalerByDefinition expected;
    expected.window = 1 + static_cast<std::int64_t>(random() % 40),
    expected.left = expected.hysteresis = 1 + static_cast<std::int64_t>(random() % 4);
    expected.consecutive = random() % 2, expected.minimum = std::ldexp(1.0, static_cast<int>(random() % 12));
    LossScale scale{.value = 65536, .good_steps = 0, .overflows_left = expected.hysteresis};
    const LossScaleRules rules{.on = true,
                               .refills = expected.consecutive,
                               .minimum = static_cast<float>(expected.minimum),
                               .window = expected.window,
                               .hysteresis = expected.hysteresis};
    const std::uint64_t rarely = 2 + random() % 30;
    for (int step = 0; step < 500 && scale.value < 0x1p90f; ++step) {
      const bool overflow = random() % rarely == 0;
      ASSERT_EQ(update_loss_scale(scale, rules, overflow), expected.update(overflow)) << drawn << ", step " << step;
      ASSERT_EQ(scale.value, expected.scale) << drawn << ", step " << step;
    }
  }
}

TEST(LossScale, AFixedOneStaysAndEndsWhereItOverflowsInARow) {
  LossScale scale{.value = 256, .good_steps = 0, .overflows_left = 3};
  const LossScaleRules rules{.on = true, .fixed = true, .window = 4, .hysteresis = 3};
  for (int step = 0; step < 20; ++step) EXPECT_TRUE(update_loss_scale(scale, rules, step % 3 != 0));
  EXPECT_TRUE(update_loss_scale(scale, rules, false));
  EXPECT_TRUE(update_loss_scale(scale, rules, true));
  EXPECT_TRUE(update_loss_scale(scale, rules, true));
  EXPECT_FALSE(update_loss_scale(scale, rules, true));
  EXPECT_EQ(scale.value, 256);
}

}  // namespace
}  // namespace tessera::kernels::testing::step_test
