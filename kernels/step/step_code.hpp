// What the step's small ops do: the same lines on a host thread and on a GPU thread.
#pragma once
#include <cmath>
#include <cstddef>

#include "kernels/step/step.hpp"

namespace tessera::kernels::step {

static_assert(offsetof(StepScalars, loss) == step_counts * sizeof(std::int64_t));
static_assert(offsetof(StepScalars, stops) == (step_counts + step_sums - 1) * sizeof(std::int64_t));

TESSERA_BOTH inline void begin_step(StepScalars* scalars, const StepInputs* inputs) {
  *scalars = {};
  scalars->weight = inputs->weight, scalars->targets = inputs->targets, scalars->document_squares = inputs->document_squares;
  scalars->padding = inputs->padding, scalars->chosen_targets = inputs->chosen_targets;
}

TESSERA_BOTH inline void scale_gradients(const ScaleGradients& p) {
  const double scale = p.inputs->scaling.on ? static_cast<double>(p.run->loss_scale.value) : 1;
  // Where no target counts there is nothing to scale.
  const double weight = p.scalars->targets > 0 ? p.scalars->weight.value() : 1;
  const double tokens = p.inputs->tokens - static_cast<double>(p.scalars->padding);
  *p.scale = {.of_targets = static_cast<float>(scale / weight), .of_tokens = static_cast<float>(scale / tokens)};
}

TESSERA_BOTH inline void add_loss(const AddLoss& p) {
  if (!p.scalars->loss.add(*p.loss_sum)) p.scalars->not_finite = 1;
}

TESSERA_BOTH inline void join_sums(StepScalars* scalars, const StepScalars* other) {
  scalars->loss.add(other->loss);
  scalars->squares.add(other->squares);
  scalars->not_finite |= other->not_finite;
  scalars->misfits |= other->misfits;
}

TESSERA_BOTH inline void count_flags(StepScalars* scalars, const StepInputs* inputs) {
  scalars->faults = scalars->not_finite || scalars->misfits & fixed_not_finite ? 1 : 0;
  scalars->overflows = scalars->misfits & fixed_out_of_range ? 1 : 0;
  scalars->stops = inputs->stop;
  scalars->own_loss = scalars->loss, scalars->own_squares = scalars->squares;
}

/// Brings norm^2 between 2^9 and 2^10, as far as fp32 has such a scale.
TESSERA_BOTH inline float square_scale(double norm) {
  int exponent = 0;
  ::frexp(norm * norm, &exponent);  // norm^2 < 2^exponent
  const int wanted = 10 - exponent;
  return norm > 0 ? static_cast<float>(::ldexp(1.0, wanted > 120 ? 120 : wanted < -120 ? -120 : wanted)) : 1.0f;
}

/// Passes over what is not finite or a spike, as far as the rules allow.
TESSERA_BOTH inline void judge(StepReport& report, Guard& guard, const GuardRules& rules) {
  const auto loss = static_cast<float>(report.loss), norm = static_cast<float>(report.grad_norm);
  const bool finite = !report.not_finite && !report.skipped, judged = finite && rules.window > 0 && report.targets > 0;
  if (judged) {
    report.loss_z = robust_z(guard.losses, rules.window, loss), report.norm_z = robust_z(guard.norms, rules.window, norm);
    report.spikes = (report.loss_z >= rules.z ? spike_of_loss : 0) | (report.norm_z >= rules.z ? spike_of_norm : 0);
  }
  const bool unfit = report.not_finite && !report.lowest, leaves = (report.spikes != 0 && rules.skips_spikes) || unfit;
  if (leaves && guard.in_a_row < rules.skip_limit) {
    ++guard.in_a_row;
    report.passed_over = 1, report.not_finite = 0;
  } else if (leaves) {
    report.limit = 1, report.not_finite = 1;
  } else if (!report.skipped) {
    guard.in_a_row = 0;
    if (judged) join(guard, rules, loss, norm);
  }
}

TESSERA_BOTH inline void finish(const FinishStep& p) {
  const StepScalars& s = *p.scalars;
  const StepInputs& in = *p.inputs;
  StepReport& report = *p.report;
  report = {};
  report.targets = s.targets, report.document_squares = s.document_squares;
  report.tokens = in.tokens - static_cast<double>(s.padding);
  report.loss_sum = s.loss.value(), report.weight = s.weight.value();
  report.loss = s.targets > 0 ? report.loss_sum / report.weight : 0;
  report.overflow = s.overflows > 0;
  report.stop = s.stops > 0;
  report.not_finite = report.overflow || s.faults > 0;
  if (!p.update) return;
  const double norm = std::sqrt(in.terms * s.squares.value()), factor = in.clipping / (norm + 1e-6);
  report.grad_norm = norm;
  const float scale = in.scaling.on ? p.run->loss_scale.value : 1;
  report.loss_scale = scale;
  if (in.scaling.on && !report.overflow && !in.rehearsal) {
    report.skipped = s.faults > 0;
    report.lowest = !update_loss_scale(p.run->loss_scale, in.scaling, s.faults > 0);
    report.not_finite = report.lowest;
    if (report.skipped) report.grad_norm = 0;  // of what was finite it would say nothing
  }
  if (!in.rehearsal) judge(report, p.run->guard, in.guard);
  const bool skip = report.not_finite || report.skipped || report.passed_over || in.rehearsal;
  p.run->sample_cursor += in.rehearsal ? 0 : in.samples;
  const auto number = static_cast<std::uint32_t>(p.run->applied_updates);
  p.run->applied_updates += !skip;
  const double clipped = in.clipping > 0 && factor < 1 ? factor : 1, whole = clipped * in.terms;
  const auto grad_scale = static_cast<float>(in.scaled_gradients ? whole / static_cast<double>(scale) : whole);
  for (int k = 0; k < in.optimizers; ++k) {
    const OptimizerInputs& of = in.optimizer[k];
    p.update[k] = {.learning_rate = in.learning_rate,
                   .beta1 = of.beta1,
                   .beta2 = of.beta2,
                   .eps = of.eps,
                   .bias_correction1 = of.bias_correction1,
                   .bias_correction2 = of.bias_correction2,
                   .grad_scale = grad_scale,
                   .skip = skip,
                   .momentum = of.momentum,
                   .least_trust = of.least_trust,
                   .most_trust = of.most_trust,
                   .square_scale = square_scale(report.grad_norm * clipped),
                   .update_clipping = of.update_clipping,
                   .number = number};
  }
}

}  // namespace tessera::kernels::step
