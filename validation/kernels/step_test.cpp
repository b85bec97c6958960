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

TEST(Step, GuardsPassOverWhatTheirRulesSay) {
  for (const StepCase& c : guarded_cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    expect_guarded(c, step_on_host(c));
  }
}

/// By sorting, in fp64.
double z_by_definition(const std::vector<float>& window, double value) {
  const auto middle = [](std::vector<double> of) {
    std::ranges::sort(of);
    return of[(of.size() - 1) / 2];
  };
  const std::vector<double> seen(window.begin(), window.end());
  const double median = middle(seen);
  std::vector<double> distances;
  for (const double x : seen) distances.push_back(std::abs(x - median));
  return (value - median) / std::max(1.4826 * middle(distances), 1e-3 * std::abs(median));
}

TEST(Guard, ScoresAreThoseOfTheMedianAndItsDistances) {
  std::mt19937_64 random(5);
  for (int drawn = 0; drawn < 300; ++drawn) {
    const int window = 8 + static_cast<int>(random() % 121),
              n = (window + 1) / 2 + static_cast<int>(random() % static_cast<std::uint64_t>(window / 2 + 1));
    float ring[most_guard_window] = {};
    const bool ties = drawn % 3 == 0;
    for (int i = 0; i < std::min(n, window); ++i) {
      const float x = ties ? 1 + static_cast<float>(random() % 3) : 0.1f + static_cast<float>(random() % 1000) * 1e-2f;
      ring[window % 5 == 0 ? i : i * 5 % window] = x;
    }
    const auto value = static_cast<float>(random() % 2000) * 1e-2f;
    std::vector<float> there;
    for (int i = 0; i < window; ++i)
      if (ring[i] != 0) there.push_back(ring[i]);
    const double expected = 2 * std::ssize(there) < window ? 0 : z_by_definition(there, static_cast<double>(value));
    EXPECT_NEAR(static_cast<double>(robust_z(ring, window, value)), expected, 1e-4 * std::max(1.0, std::abs(expected)))
        << window << " " << n;
  }
  const float same[most_guard_window] = {2, 2, 2, 2, 2, 2, 2, 2};
  EXPECT_NEAR(static_cast<double>(robust_z(same, 8, 2.01f)), 5, 1e-3) << "a thousandth of the median is the least spread";
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
