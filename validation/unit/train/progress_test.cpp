// Durations for people.
#include "train/progress.hpp"

#include <gtest/gtest.h>

namespace tessera {
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
}  // namespace tessera
