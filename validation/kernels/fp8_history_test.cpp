// Delayed scales against their definition, step by step.
#include "fp8_history_cases.hpp"

#include <gtest/gtest.h>

#include <deque>

namespace tessera::kernels::testing::fp8_history_test {
namespace {

TEST(Fp8History, AScaleIsThatOfTheLargestMagnitudeOfTheStepsBefore) {
  for (const int margin : {0, 3}) {
    constexpr std::int64_t n = 9, length = 4;
    Histories h = histories_of(n / fp8_tensors, length, margin);
    std::vector<std::deque<float>> steps(n);
    advance_on_host((draw_largest(h, 0), h), false);  // what a start finds counts for nothing
    EXPECT_EQ(h.multipliers, std::vector<float>(n, 1.f));
    EXPECT_EQ(h.largest, std::vector<float>(n, 0.f));
    for (unsigned step = 1; step < 9; ++step) {
      draw_largest(h, step);
      for (std::size_t i = 0; i < n; ++i) {
        steps[i].push_front(h.largest[i]);
        if (steps[i].size() > length) steps[i].pop_back();
      }
      advance_on_host(h, true);
      EXPECT_EQ(h.largest, std::vector<float>(n, 0.f));
      for (std::size_t i = 0; i < n; ++i) {
        const double most = std::ranges::max(steps[i]), largest = i / 3 == 1 ? 57344 : 448;
        const float expected = most == 0 ? 1 : static_cast<float>(largest / std::max(most, 1e-12)) / static_cast<float>(1 << margin);
        EXPECT_EQ(h.multipliers[i], expected) << "tensor " << i << " after step " << step;
        for (std::size_t s = 0; s < length; ++s) EXPECT_EQ(h.history[i * length + s], s < steps[i].size() ? steps[i][s] : 0);
      }
      // A start makes the same of the histories.
      Histories again = h;
      again.multipliers = poisoned<float>(n);
      advance_on_host(again, false);
      EXPECT_EQ(again.multipliers, h.multipliers);
      EXPECT_EQ(again.history, h.history);
    }
  }
}

TEST(Fp8History, OfOneStepIsThatStep) {
  Histories h = histories_of(1, 1, 0);
  h.largest = {2, 4, 0};
  advance_on_host(h, true);
  EXPECT_EQ(h.multipliers, (std::vector<float>{224, 14336, 1}));
  EXPECT_EQ(h.history, (std::vector<float>{2, 4, 0}));
}

}  // namespace
}  // namespace tessera::kernels::testing::fp8_history_test
