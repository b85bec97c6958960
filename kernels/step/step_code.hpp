// What the step's small ops do: the same lines on a host thread and on a GPU thread.
#pragma once
#include <cmath>
#include <cstddef>

#include "kernels/step/step.hpp"

namespace tessera::kernels::step {

static_assert(offsetof(StepScalars, stops) == (step_sums - 1) * sizeof(std::int64_t));

TESSERA_BOTH inline void add_loss(const AddLoss& p) {
  if (*p.weight == 0) return;
  if (!p.scalars->loss.add(*p.weight * *p.loss_sum)) p.scalars->not_finite = 1;
}

TESSERA_BOTH inline void join_sums(StepScalars* scalars, const StepScalars* other) {
  scalars->loss.add(other->loss);
  scalars->squares.add(other->squares);
  scalars->not_finite |= other->not_finite;
  scalars->overflow |= other->overflow;
}

TESSERA_BOTH inline void count_flags(StepScalars* scalars, const StepInputs* inputs) {
  scalars->faults = (scalars->not_finite || scalars->overflow) ? 1 : 0;
  scalars->stops = inputs->stop;
}

TESSERA_BOTH inline void finish(const FinishStep& p) {
  const StepScalars& s = *p.scalars;
  const StepInputs& in = *p.inputs;
  p.report->loss = s.loss.value() / in.targets * in.gradient_scale;
  p.report->not_finite = s.faults > 0;
  p.report->overflow = s.overflow;
  p.report->stop = s.stops > 0;
  if (!p.adamw) return;
  const double norm = std::sqrt(s.squares.value()) * in.gradient_scale, factor = in.clipping / (norm + 1e-6);
  p.report->grad_norm = norm;
  *p.adamw = {.learning_rate = in.learning_rate,
              .beta1 = in.beta1,
              .beta2 = in.beta2,
              .eps = in.eps,
              .bias_correction1 = in.bias_correction1,
              .bias_correction2 = in.bias_correction2,
              .grad_scale = static_cast<float>(in.gradient_scale * (in.clipping > 0 && factor < 1 ? factor : 1)),
              .skip = p.report->not_finite};
}

}  // namespace tessera::kernels::step
