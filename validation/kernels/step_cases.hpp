// Steps of a run: losses, norms and flags of micro-batches, and what a step makes of them by definition.
#pragma once
#include <memory>
#include <ostream>

#include "kernels/step/step.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

/// The loss sums of micro-batches, which count by their weights, and the norm of the gradient.
struct StepCase {
  const char* name;
  std::vector<double> losses, weights;
  double norm = 1;
  bool stop = false;
  StepInputs inputs() const {
    return {.targets = 1013, .learning_rate = 3e-4f, .bias_correction1 = 0.1f, .bias_correction2 = 0.05f, .clipping = 1, .stop = stop};
  }
};
inline std::vector<StepCase> step_cases() {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  return {{"a norm below the clipping", {4021.7, 3999.1, 12.25}, {1, 1, 0.5}, 0.3},
          {"a norm above the clipping", {4021.7, 3999.1, 12.25}, {1, 1, 0.5}, 7.7},
          {"a micro-batch without weight", {100, nan}, {1, 0}},
          {"a loss that is not a number", {100, nan}, {1, 1}},
          {"a loss that is infinite", {100, infinity}, {1, 1}},
          {"a stop", {100}, {1}, 1, true}};
}
inline std::ostream& operator<<(std::ostream& out, const StepCase& c) { return out << c.name; }

/// What a step leaves.
struct StepLeft {
  StepScalars scalars;
  AdamwScalars adamw;
  StepReport report;
};

/// On memory of either backend, by the functions that fill and read it.
template <class Put, class Get>
StepLeft run_step(Backend backend, const StepCase& c, Put put, Get get) {
  const Context context{.workspace = {}, .reproducible = false, .backend = backend};
  StepScalars zero{};
  EXPECT_TRUE(zero.squares.add(c.norm * c.norm));
  auto* scalars = put(zero);
  auto* inputs = put(c.inputs());
  auto* adamw = put(AdamwScalars{});
  auto* report = put(StepReport{});
  for (std::size_t i = 0; i < c.losses.size(); ++i)
    add_loss(context, {.scalars = scalars, .loss_sum = put(c.losses[i]), .weight = put(c.weights[i])});
  count_flags(context, scalars, inputs);
  finish_step(context, {.scalars = scalars, .inputs = inputs, .adamw = adamw, .report = report});
  return {get(scalars), get(adamw), get(report)};
}

inline StepLeft step_on_host(const StepCase& c) {
  std::vector<std::shared_ptr<void>> kept;
  return run_step(
      Backend::host, c,
      [&]<class T>(const T& value) {
        auto copy = std::make_shared<T>(value);
        kept.push_back(copy);
        return copy.get();
      },
      []<class T>(T* at) { return *at; });
}

inline void expect_by_definition(const StepCase& c, const StepLeft& left) {
  double loss = 0;
  for (std::size_t i = 0; i < c.losses.size(); ++i)
    if (c.weights[i] != 0) loss += c.losses[i] * c.weights[i];
  const int bad = std::isfinite(loss) ? 0 : 1;
  EXPECT_EQ(left.report.not_finite, bad);
  EXPECT_EQ(left.report.overflow, 0);
  EXPECT_EQ(left.report.stop, c.stop);
  EXPECT_EQ(left.scalars.stops, c.stop);
  EXPECT_EQ(left.scalars.faults, bad);
  EXPECT_EQ(left.adamw.skip, bad);
  if (bad == 0) {
    EXPECT_NEAR(left.report.loss, loss / 1013, 1e-9);
    EXPECT_NEAR(left.report.grad_norm, c.norm, 1e-9);
    EXPECT_NEAR(left.adamw.grad_scale, std::min(1.0, 1 / (c.norm + 1e-6)), 1e-7);
    EXPECT_EQ(left.adamw.learning_rate, c.inputs().learning_rate);
    EXPECT_EQ(left.adamw.bias_correction1, c.inputs().bias_correction1);
    EXPECT_EQ(left.adamw.bias_correction2, c.inputs().bias_correction2);
  }
}

/// Sums of two tiers that join.
struct JoinedSums {
  StepScalars mine{}, other{};
  JoinedSums() {
    EXPECT_TRUE(mine.squares.add(2.5) && mine.loss.add(7) && other.squares.add(0x1p-60) && other.squares.add(1e9));
    other.overflow = 1;
  }
  static void expect_joined(const StepScalars& joined) {
    EXPECT_EQ(joined.squares.value(), 2.5 + 1e9 + 0x1p-60);
    EXPECT_EQ(joined.loss.value(), 7);
    EXPECT_EQ(joined.overflow, 1);
    EXPECT_EQ(joined.not_finite, 0);
  }
};

}  // namespace tessera::kernels::testing
