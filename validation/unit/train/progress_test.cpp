// What people read of a step: durations, lines, and a share that is none.
#include "base/progress.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "train/engine/machine_rate.hpp"

namespace tessera::progress_test {
namespace {

TEST(HumanDuration, Edges) {
  EXPECT_EQ(human_duration(0), "0 s");
  EXPECT_EQ(human_duration(12.4), "12 s");
  EXPECT_EQ(human_duration(59.6), "1 min 00 s");
  EXPECT_EQ(human_duration(200), "3 min 20 s");
  EXPECT_EQ(human_duration(3599.7), "1 h 00 min");
  EXPECT_EQ(human_duration(7500), "2 h 05 min");
  EXPECT_EQ(human_duration(400000), "111 h 06 min");
}

TEST(Progress, AShareAboveAllIsSaidToBeNone) {
  EXPECT_EQ(mfu_text({.full = 0.431, .causal = 0.402}), "MFU 43.1 % (40.2 % causal)");
  EXPECT_EQ(mfu_text({.full = 0.431, .causal = 0.402, .of_peak = false}), "43.1 % (40.2 % causal) of the measured product") << "no MFU";
  EXPECT_EQ(mfu_numbers({.full = 1.02, .causal = 0.98}), "102.0 % (98.0 % causal)")
      << "all of attention counts, and kernels leave out half of it";
  EXPECT_EQ(mfu_text({.full = 7.2, .causal = 6.9, .of_peak = false}),
            "720.0 % (690.0 % causal: no share, because the product was measured on a busy machine) of the measured product");
  EXPECT_EQ(mfu_text({.full = 7.2, .causal = 6.9}),
            "MFU 720.0 % (690.0 % causal: no share, because the profile's peak is not this machine's)");
}

TEST(Yardstick, APeakIsNeverMeasuredAgain) {
  Yardstick peak(100);
  EXPECT_TRUE(peak.is_peak());
  EXPECT_FALSE(peak.remeasure(7.2));
  EXPECT_EQ(peak.rate(), 100);
  EXPECT_FALSE(Yardstick(
                   100, [] { return 1.0; }, 1)
                   .is_peak());
}

TEST(Yardstick, IsMeasuredAgainWhereStepsReachMore) {
  struct Case {
    const char* what;
    std::vector<double> found;  // by the later measurements
    int times;
    std::vector<double> mfu;  // of the steps, by the first rate
    double rate, measured;
  };
  const Case cases[] = {
      {"never more than all", {900}, 3, {0.3, 1.0, 0.9}, 100, 0},
      {"the machine is idle again", {900}, 3, {7.2, 7.2, 7.2}, 900, 1},
      {"it is busy for longer", {120, 900}, 3, {7.2, 7.2, 7.2}, 900, 2},
      {"it is busier", {50, 60, 70, 900}, 3, {7.2, 7.2, 7.2, 7.2}, 100, 3},
      {"nobody can measure", {900}, 0, {7.2}, 100, 0},
  };
  for (const Case& c : cases) {
    std::size_t measured = 0;
    Yardstick yardstick(
        100, [&] { return c.found.at(measured++); }, c.times);
    for (const double mfu : c.mfu) {
      const double before = yardstick.rate();
      const bool remeasured = yardstick.remeasure(mfu * 100 / before);
      EXPECT_EQ(remeasured, yardstick.rate() > before) << c.what;
    }
    EXPECT_EQ(yardstick.rate(), c.rate) << c.what;
    EXPECT_EQ(measured, c.measured) << c.what;
  }
}

TEST(Progress, LinesGoOutAtTheirStepsAndAtTheEnd) {
  testing::internal::CaptureStderr();
  Progress progress(0, 7, 3, "1 of 1");
  for (std::int64_t step = 1; step <= 7; ++step)
    progress.step({.step = step, .loss = 1.25, .grad_norm = 0.5, .learning_rate = 1e-3, .tokens_per_second = 1000, .seconds = 2});
  progress.finish();
  const std::string text = testing::internal::GetCapturedStderr();
  for (std::int64_t step = 1; step <= 7; ++step)
    EXPECT_EQ(text.find("step " + std::to_string(step) + "/7") != std::string::npos, step % 3 == 0 || step == 7) << text;
  EXPECT_NE(text.find("left 8 s"), std::string::npos) << text;
}

}  // namespace
}  // namespace tessera::progress_test
