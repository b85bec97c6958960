// What a run says of its own figures: each sign once, and none of a run that is well.
#include "train/observe/warning_signs.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::warning_signs_test {
namespace {

StepFigures figures(std::int64_t step) {
  const double noise = std::sin(static_cast<double>(step));
  return {.step = step,
          .loss = 2 + 0.01 * noise,
          .grad_norm = 1 + 0.5 * noise,
          .learning_rate = 1e-3,
          .tokens_per_second = 1000 * (1 + 0.05 * noise),
          .seconds = 1};
}

/// Lines of so many steps of a second each.
template <class F>
std::vector<std::string> lines_of(std::int64_t steps, F&& change) {
  WarningSigns signs;
  std::vector<std::string> all;
  for (std::int64_t step = 1; step <= steps; ++step) {
    StepFigures f = figures(step);
    change(f);
    for (const std::string& line : signs.after(f, static_cast<double>(step))) all.push_back(line);
  }
  return all;
}

TEST(WarningSigns, ARunThatIsWellHasNone) {
  EXPECT_TRUE(lines_of(3 * 3600, [](StepFigures&) {}).empty());
  // Nor does a schedule that begins and ends at 0, nor a first step of a large gradient.
  EXPECT_TRUE(lines_of(100, [](StepFigures& f) {
                if (f.step == 1 || f.step == 100) f.learning_rate = 0;
                if (f.step == 1) f.grad_norm = 50;
              }).empty());
}

void expect_once(const std::vector<std::string>& lines, const std::string& begin) {
  ASSERT_EQ(lines.size(), 1u) << begin;
  EXPECT_EQ(lines[0].substr(0, begin.size()), begin);
}

TEST(WarningSigns, EachIsSaidOnceWithItsStep) {
  expect_once(lines_of(60,
                       [](StepFigures& f) {
                         if (f.step % 20 == 10) f.grad_norm = 74;
                       }),
              "step 10: the gradient's norm is 74, ");
  expect_once(lines_of(60,
                       [](StepFigures& f) {
                         if (f.step >= 30) f.grad_norm = 0;
                       }),
              "step 30: the gradient is 0, ");
  expect_once(lines_of(400, [](StepFigures& f) { f.loss = 5.5 + 1e-5 * std::sin(static_cast<double>(f.step)); }),
              "step 100: the loss has stayed at 5.4");
  expect_once(lines_of(60,
                       [](StepFigures& f) {
                         if (f.step >= 41) f.learning_rate = 0;
                       }),
              "step 42: the learning rate is 0 ");
}

TEST(WarningSigns, ARateThatIsZeroByTheScheduleIsNoWarning) {
  const auto lines_of_zeros = [](const LearningRateKeys& keys, std::int64_t zeros) {
    WarningSigns signs(steps_still_by_design(keys));
    std::vector<std::string> all;
    for (std::int64_t step = 1; step <= 6; ++step)
      for (std::string& line :
           signs.after({.step = step, .loss = 1, .grad_norm = 1, .learning_rate = step <= zeros ? 0 : 1e-3, .seconds = 1}, 1.0))
        all.push_back(std::move(line));
    return all;
  };
  const LearningRateKeys warmup{.schedule = RateSchedule::warmup_lr};
  EXPECT_TRUE(lines_of_zeros(warmup, 2).empty()) << "DeepSpeed's WarmupLR begins so";
  EXPECT_EQ(lines_of_zeros(warmup, 4).size(), 1u) << "and goes on with a rate";
  EXPECT_EQ(lines_of_zeros({.schedule = RateSchedule::cosine}, 2).size(), 1u);
  EXPECT_EQ(steps_still_by_design({.schedule = RateSchedule::warmup_lr, .warmup_min_lr = 1e-5}), 0);
}

TEST(WarningSigns, StepsAreComparedWithThoseOfAnHourBefore) {
  const auto slow_from = [](std::int64_t second, double share) {
    return lines_of(3 * 3600, [=](StepFigures& f) {
      if (f.step >= second) f.tokens_per_second *= share;
    });
  };
  EXPECT_TRUE(slow_from(7200, 0.95).empty()) << "less than a tenth";
  EXPECT_TRUE(slow_from(0, 0.5).empty()) << "from the begin";
  expect_once(slow_from(7200, 0.8), "step 7380: steps of the last 5 minutes reach ");
}

TEST(WarningSigns, SavesFitBetweenEachOther) {
  WarningSigns signs;
  EXPECT_EQ(signs.after_save(10, 50, 60), "");
  EXPECT_EQ(signs.after_save(10, 50, 0), "") << "the last";
  EXPECT_EQ(signs.after_save(10, 0.9, 0.1), "") << "of a small model";
  EXPECT_EQ(signs.after_save(20, 70, 60).substr(0, 27), "step 20: the save took 70 s");
  EXPECT_EQ(signs.after_save(30, 70, 60), "");
}

TEST(WarningSigns, RoomForTheNextSaves) {
  WarningSigns signs;
  const std::string line = signs.no_room(40, "runs/a/checkpoints", 3 << 20, 1 << 20);
  EXPECT_EQ(line.substr(0, line.find(". Free")), "step 40: the next saves need 3.00 MiB at once, but runs/a/checkpoints has 1.00 MiB free");
  EXPECT_NE(line.find("checkpoint.keep"), std::string::npos);
  EXPECT_EQ(signs.no_room(50, "runs/a/checkpoints", 3 << 20, 1 << 20), "");
}

}  // namespace
}  // namespace tessera::warning_signs_test
