// Steps of a run: losses, norms and flags of micro-batches, and what a step makes of them by definition.
#pragma once
#include <array>
#include <cstring>
#include <memory>
#include <ostream>

#include "kernels/step/step.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

/// The loss sums of micro-batches, what their rows weigh together, and the norm of the gradient.
struct StepCase {
  const char* name;
  std::vector<double> losses;
  double weight = 1013;
  double norm = 1;
  bool stop = false;
  float loss_scale = 0;      ///< of fp16; 0: there is none
  std::int32_t misfits = 0;  ///< of fixed point
  bool scaled_sums = false;  ///< the update reads what the scale has multiplied
  double terms = 1;          ///< of ranks that keep their own gradients
  GuardRules rules = {};
  Guard guard = {};  ///< before the step
  bool rehearsal = false;
  std::int32_t spikes = 0;  ///< that the guard must see
  bool bad() const {
    double loss = 0;
    for (const double of : losses) loss += of;
    return !std::isfinite(loss) || misfits & fixed_not_finite;
  }
  StepInputs inputs() const {
    FixedSum sum;
    EXPECT_TRUE(sum.add(weight));
    return {
        .weight = sum,
        .targets = weight > 0 ? 1013 : 0,
        .tokens = 1024,
        .learning_rate = 3e-4f,
        .optimizers = 2,
        .optimizer = {{.bias_correction1 = 0.1f, .bias_correction2 = 0.05f}, {.bias_correction1 = 0.3f, .beta1 = 0.7f, .momentum = 0.6f}},
        .clipping = 1,
        .terms = terms,
        .samples = 12,
        .scaling = {.on = loss_scale > 0, .minimum = 2, .hysteresis = 1},
        .guard = rules,
        .rehearsal = rehearsal,
        .scaled_gradients = scaled_sums,
        .stop = stop};
  }
};
/// Windows of 16 steps, of which `n` are there: losses about 4, norms about 0.5, in no order.
inline Guard seen_steps(int n, std::int64_t in_a_row = 0) {
  Guard guard{.in_a_row = in_a_row, .judged = n};
  for (int i = 0; i < n; ++i)
    guard.losses[i] = 4 + 0.01f * static_cast<float>(i * 7 % 16), guard.norms[i] = 0.5f + 0.02f * static_cast<float>(i * 5 % 16);
  return guard;
}

/// Steps that guards judge.
inline std::vector<StepCase> guarded_cases() {
  const GuardRules rules{.skip_limit = 2, .window = 16, .skips_spikes = true, .z = 6}, warns{.window = 16, .z = 6}, skips{.skip_limit = 2};
  const auto of = [](const char* name, double loss, double norm, const GuardRules& r, const Guard& g, std::int32_t spikes,
                     std::int32_t misfits = 0, bool rehearsal = false) {
    return StepCase{.name = name,
                    .losses = {loss * 1013},
                    .norm = norm,
                    .misfits = misfits,
                    .rules = r,
                    .guard = g,
                    .rehearsal = rehearsal,
                    .spikes = spikes};
  };
  return {of("a step like those before", 4.05, 0.6, rules, seen_steps(16, 1), 0),
          of("a loss far above", 9, 0.6, rules, seen_steps(16), spike_of_loss),
          of("a norm far above", 4.05, 30, rules, seen_steps(16), spike_of_norm),
          of("both far above, the last that may be passed over", 9, 30, rules, seen_steps(16, 1), spike_of_loss | spike_of_norm),
          of("one more than may be passed over", 9, 30, rules, seen_steps(16, 2), spike_of_loss | spike_of_norm),
          of("a loss far below", 0.1, 0.6, rules, seen_steps(16), 0),
          of("a loss far above half a window less one", 9, 30, rules, seen_steps(7), 0),
          of("a loss far above half a window", 9, 0.6, rules, seen_steps(8), spike_of_loss),
          of("a spike that is only said", 9, 0.6, warns, seen_steps(16), spike_of_loss),
          of("a gradient that is not finite, passed over", 4, 0.6, skips, {}, 0, fixed_not_finite),
          of("one more that is not finite than may be", 4, 0.6, skips, seen_steps(0, 2), 0, fixed_not_finite),
          of("a gradient out of range, passed over", 4, 0.6, skips, {}, 0, fixed_out_of_range),
          of("a rehearsal", 4.05, 0.6, rules, seen_steps(16, 1), 0, 0, true),
          of("a rehearsal of what is not finite", 4.05, 0.6, rules, seen_steps(16, 1), 0, fixed_not_finite, true)};
}

inline std::vector<StepCase> step_cases() {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  return {{"a norm below the clipping", {4021.7, 3999.1, 12.25}, 1013, 0.3},
          {"a norm above the clipping", {4021.7, 3999.1, 12.25}, 1013, 7.7},
          {"rows that count for a part", {100}, 379.875},
          {"no row that counts", {0}, 0},
          {"a loss that is not a number", {100, nan}},
          {"a loss that is infinite", {100, infinity}},
          {"a stop", {100}, 1013, 1, true},
          {"a gradient out of range", {100}, 1013, 1, false, 0, fixed_out_of_range},
          {"a gradient that is not finite", {100}, 1013, 1, false, 0, fixed_not_finite},
          {"a scale", {100}, 1013, 0.5, false, 1024},
          {"a scale and scaled sums", {100}, 1013, 3, false, 1024, 0, true},
          {"gradients of three ranks", {100}, 1013, 0.4, false, 0, 0, false, 3},
          {"gradients of three ranks, clipped", {100}, 1013, 0.7, false, 0, 0, false, 3},
          {"an overflow of fp16", {100}, 1013, 1, false, 1024, fixed_not_finite},
          {"an overflow at the lowest scale", {100}, 1013, 1, false, 2, fixed_not_finite},
          {"a gradient out of range under a scale", {100}, 1013, 1, false, 1024, fixed_out_of_range}};
}
inline std::ostream& operator<<(std::ostream& out, const StepCase& c) { return out << c.name; }

/// What a step leaves.
struct StepLeft {
  StepScalars scalars;
  UpdateScalars update, second;  ///< of two optimizers
  StepReport report;
  RunValues run;
  GradientScale gradient_scale;
};

/// On memory of either backend, by the functions that fill and read it.
template <class Put, class Get>
StepLeft run_step(Backend backend, const StepCase& c, Put put, Get get) {
  const Context context{.workspace = {}, .reproducible = false, .backend = backend};
  auto* inputs = put(c.inputs());
  StepScalars before{};
  before.stops = before.targets = 77;  // of the step before
  auto* begun = put(before);
  begin_step(context, begun, inputs);
  StepScalars first = get(begun);
  EXPECT_EQ(first.stops, 0);
  EXPECT_TRUE(first.squares.add(c.norm * c.norm));
  first.misfits = c.misfits;
  auto* scalars = put(first);
  auto* update = put(std::array<UpdateScalars, 2>{});
  auto* report = put(StepReport{});
  auto* run = put(
      RunValues{.applied_updates = 7, .sample_cursor = 84, .loss_scale = {.value = c.loss_scale > 0 ? c.loss_scale : 1}, .guard = c.guard});
  auto* gradient_scale = put(GradientScale{});
  scale_gradients(context, {.scale = gradient_scale, .scalars = scalars, .inputs = inputs, .run = run});
  for (const double loss : c.losses) add_loss(context, {.scalars = scalars, .loss_sum = put(loss)});
  count_flags(context, scalars, inputs);
  finish_step(context, {.scalars = scalars, .inputs = inputs, .update = update->data(), .report = report, .run = run});
  const auto updates = get(update);
  return {get(scalars), updates[0], updates[1], get(report), get(run), get(gradient_scale)};
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
  for (const double of : c.losses) loss += of;
  const bool bad = c.bad(), out_of_range = c.misfits & fixed_out_of_range, scales = c.loss_scale > 0 && !out_of_range,
             lowest = scales && bad && c.loss_scale == 2;
  EXPECT_EQ(left.report.not_finite, out_of_range || lowest || (bad && !scales));
  EXPECT_EQ(left.report.overflow, out_of_range);
  EXPECT_EQ(left.report.skipped, scales && bad);
  EXPECT_EQ(left.report.lowest, lowest);
  EXPECT_EQ(left.report.stop, c.stop);
  EXPECT_EQ(left.scalars.stops, c.stop);
  EXPECT_EQ(left.scalars.faults, bad);
  EXPECT_EQ(left.scalars.overflows, out_of_range);
  EXPECT_EQ(left.update.skip, bad || out_of_range);
  const float scale = c.loss_scale > 0 ? c.loss_scale : 1;
  EXPECT_EQ(left.gradient_scale.of_tokens, scale / 1024);
  const double weight = c.weight > 0 ? c.weight : 1;
  EXPECT_EQ(left.gradient_scale.of_targets, static_cast<float>(static_cast<double>(scale) / weight));
  EXPECT_EQ(left.report.targets, c.weight > 0 ? 1013 : 0);
  EXPECT_EQ(left.report.weight, c.weight);
  EXPECT_EQ(left.run.applied_updates, bad || out_of_range ? 7 : 8);
  EXPECT_EQ(left.run.sample_cursor, 96) << "samples of a skipped step are taken too";
  EXPECT_EQ(left.run.loss_scale.value, scales && bad && !lowest ? scale / 2 : scale);
  if (bad || out_of_range) return;
  EXPECT_NEAR(left.report.loss, loss / weight, 1e-9);
  const double norm = c.norm * std::sqrt(c.terms);  // the root mean square of terms, each times their number
  EXPECT_NEAR(left.report.grad_norm, norm, 1e-9);
  const double clip = std::min(1.0, 1 / (norm + 1e-6)), unscaled = c.terms / (c.scaled_sums ? static_cast<double>(scale) : 1);
  EXPECT_NEAR(left.update.grad_scale, clip * unscaled, 1e-7 * unscaled);
  EXPECT_EQ(left.update.learning_rate, c.inputs().learning_rate);
  EXPECT_EQ(left.update.bias_correction1, 0.1f);
  EXPECT_EQ(left.update.bias_correction2, 0.05f);
  EXPECT_EQ(left.second.bias_correction1, 0.3f);
  EXPECT_EQ(left.second.beta1, 0.7f);
  EXPECT_EQ(left.second.momentum, 0.6f);
  EXPECT_EQ(left.second.grad_scale, left.update.grad_scale);
  EXPECT_EQ(left.second.learning_rate, left.update.learning_rate);
}

inline void expect_guarded(const StepCase& c, const StepLeft& left) {
  const bool bad = c.misfits != 0, passes = bad || (c.spikes != 0 && c.rules.skips_spikes), room = c.guard.in_a_row < c.rules.skip_limit;
  EXPECT_EQ(left.scalars.own_loss.value(), c.losses[0]);
  EXPECT_EQ(left.update.skip, passes || c.rehearsal);
  EXPECT_EQ(left.run.applied_updates, passes || c.rehearsal ? 7 : 8);
  EXPECT_EQ(left.run.sample_cursor, c.rehearsal ? 84 : 96) << "samples of a step that is passed over are taken too";
  if (c.rehearsal) {
    EXPECT_EQ(std::memcmp(&left.run.guard, &c.guard, sizeof c.guard), 0) << "nothing has moved";
    EXPECT_EQ(left.report.not_finite, bad);
    return;
  }
  EXPECT_EQ(left.report.spikes, c.spikes);
  EXPECT_EQ(left.report.passed_over, passes && room);
  EXPECT_EQ(left.report.limit, passes && !room);
  EXPECT_EQ(left.report.not_finite, passes && !room);
  EXPECT_EQ(left.run.guard.in_a_row, !passes ? 0 : room ? c.guard.in_a_row + 1 : c.guard.in_a_row);
  const bool joins = !passes && c.rules.window > 0;
  EXPECT_EQ(left.run.guard.judged, c.guard.judged + joins);
  Guard expected = c.guard;
  if (joins) {
    const auto at = expected.judged % c.rules.window;
    expected.losses[at] = static_cast<float>(left.report.loss), expected.norms[at] = static_cast<float>(left.report.grad_norm);
  }
  EXPECT_EQ(std::memcmp(left.run.guard.losses, expected.losses, sizeof expected.losses), 0);
  EXPECT_EQ(std::memcmp(left.run.guard.norms, expected.norms, sizeof expected.norms), 0);
}

/// Sums of two tiers that join.
struct JoinedSums {
  StepScalars mine{}, other{};
  JoinedSums() {
    EXPECT_TRUE(mine.squares.add(2.5) && mine.loss.add(7) && other.squares.add(0x1p-60) && other.squares.add(1e9));
    other.misfits = fixed_not_finite;
  }
  static void expect_joined(const StepScalars& joined) {
    EXPECT_EQ(joined.squares.value(), 2.5 + 1e9 + 0x1p-60);
    EXPECT_EQ(joined.loss.value(), 7);
    EXPECT_EQ(joined.misfits, fixed_not_finite);
    EXPECT_EQ(joined.not_finite, 0);
  }
};

}  // namespace tessera::kernels::testing
