// The small values of a step. Tasks hand them to each other through memory, so that a step never branches on the host, on any backend.
#pragma once
#include "kernels/context.hpp"
#include "kernels/fixed/fixed.hpp"
#include "kernels/fixed/fixed_sum.hpp"
#include "kernels/step/guard.hpp"
#include "kernels/step/loss_scale.hpp"
#include "kernels/update/scalars.hpp"

namespace tessera::kernels {

/// What a run carries from step to step beside the state of its parameters: the same on all ranks, and saved (schedule/run_values.hpp).
struct RunValues {
  std::int64_t applied_updates = 0;   ///< steps that were not skipped: schedules and bias corrections count these
  std::int64_t sample_cursor = 0;     ///< the first sample that the next step takes
  std::int64_t samples_left_out = 0;  ///< that the cursor has passed and no step has taken
  LossScale loss_scale = {};
  Guard guard = {};
};

/// Sums of a step. The first 8 int64 of it travel in one all-reduce as it begins, the 11 after them in one at its end.
struct StepScalars {
  FixedSum weight;                    ///< of rows in the loss; pairs, if the loss is of pairs
  std::int64_t targets = 0;           ///< of a weight above 0
  std::int64_t document_squares = 0;  ///< of documents' lengths, where these are masked
  std::int64_t padding = 0;           ///< tokens that routers do not count
  std::int64_t chosen_targets = 0;    ///< of pairs: targets of chosen texts
  FixedSum loss;                      ///< of micro-batches: sum of rows' losses
  FixedSum squares;                   ///< of the gradient
  std::int64_t faults = 0;            ///< ranks that saw a value that is not finite
  std::int64_t overflows = 0;         ///< ranks that saw a finite one that fixed point cannot hold
  std::int64_t stops = 0;             ///< ranks that were asked to stop
  std::int32_t not_finite = 0;        ///< this rank, loss or norm
  std::int32_t misfits = 0;           ///< this rank, fixed point: FixedFault bits
  FixedSum own_loss, own_squares;     ///< what this rank added
};
inline constexpr std::int64_t step_counts = 8, step_sums = 11;

/// Optimizers that a run's tensors may have, at most.
inline constexpr int most_optimizers = 4;
/// What the host knows of one of them before a step.
struct OptimizerInputs {
  float bias_correction1 = 1, bias_correction2 = 1;
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, momentum = 0;
  float least_trust = 0.01f, most_trust = 10, update_clipping = 1;
};
/// Written by the host before a step.
struct StepInputs {
  FixedSum weight = {};
  /// Of this rank's part of the batch, each counted by one of the ranks that share it.
  std::int64_t targets = 0, document_squares = 0, padding = 0, chosen_targets = 0;
  double tokens = 1;  ///< of the global batch, or of the evaluation, padding and all
  float learning_rate = 0;
  std::int32_t optimizers = 1;
  OptimizerInputs optimizer[most_optimizers] = {};
  double clipping = 0;  ///< largest global norm; 0: none
  double terms = 1;     ///< ranks that keep gradients of their own micro-batches, of which the sum is the whole one; 1: they are summed
  std::int64_t samples = 0;  ///< of the step
  LossScaleRules scaling = {};
  GuardRules guard = {};
  bool rehearsal = false;         ///< the step is computed and moves nothing, not even the run's values
  bool scaled_gradients = false;  ///< the update reads them as the loss's scale has made them
  bool stop = false;              ///< this rank was asked to stop
};

enum SpikeOf : std::int32_t { spike_of_loss = 1, spike_of_norm = 2 };

/// Read by the host after a step.
struct StepReport {
  double loss = 0, grad_norm = 0;   ///< mean over targets by their weights; of its gradient
  double loss_sum = 0, weight = 0;  ///< over targets
  std::int64_t targets = 0, document_squares = 0;
  double tokens = 0;             ///< of the batch, without padding that routers do not count
  float loss_scale = 1;          ///< that the step's gradients were made with
  std::int32_t not_finite = 0;   ///< 1: weights were left as they were, and the run cannot go on
  std::int32_t overflow = 0;     ///< 1: and finite values that fixed point cannot hold were the cause
  std::int32_t skipped = 0;      ///< 1: weights were left as they were, since gradients overflowed under the scale of the loss
  std::int32_t lowest = 0;       ///< 1: and the scale cannot fall any more
  std::int32_t passed_over = 0;  ///< 1: a guard left weights as they were
  std::int32_t spikes = 0;       ///< bits of SpikeOf
  std::int32_t limit = 0;        ///< 1: not_finite, since as many steps in a row were passed over as may be
  float loss_z = 0, norm_z = 0;  ///< robust z-scores, where spikes are looked for
  std::int32_t stop = 0;         ///< 1: a rank was asked to stop
};

/// A step's sums begin: what this rank counts, and zeros.
TESSERA_OP(begin_step, (const Context& context, StepScalars* scalars, const StepInputs* inputs), (context, scalars, inputs))

/// What gradients of sums are multiplied by, so that the loss is their mean: the loss's scale over the weight that they have.
struct GradientScale {
  float of_targets = 0, of_tokens = 0;
};
/// Before the first backward pass.
struct ScaleGradients {
  GradientScale* scale = nullptr;
  const StepScalars* scalars = nullptr;
  const StepInputs* inputs = nullptr;
  const RunValues* run = nullptr;
};
TESSERA_OP(scale_gradients, (const Context& context, const ScaleGradients& arguments), (context, arguments))

/// A micro-batch's loss joins the step's.
struct AddLoss {
  StepScalars* scalars = nullptr;
  const double* loss_sum = nullptr;
};
TESSERA_OP(add_loss, (const Context& context, const AddLoss& arguments), (context, arguments))

/// Sums and flags of `other`, which tasks of another tier made, join the step's.
TESSERA_OP(join_sums, (const Context& context, StepScalars* scalars, const StepScalars* other), (context, scalars, other))

/// This rank's flags become counts, which the all-reduce of the first step_sums int64 of the scalars adds over ranks.
TESSERA_OP(count_flags, (const Context& context, StepScalars* scalars, const StepInputs* inputs), (context, scalars, inputs))

/// Of ranks that keep their own gradients, each times their number, the norm is the root mean square, and the update reads them times that.
/// From the sums over all ranks: the report and, in training, clip factor, the update's scalars and the run's values. The clip factor is
/// PyTorch's clip_grad_norm_: the norm plus 1e-6 divides.
struct FinishStep {
  const StepScalars* scalars = nullptr;
  const StepInputs* inputs = nullptr;
  UpdateScalars* update = nullptr;  ///< one of each optimizer; null in an evaluation
  StepReport* report = nullptr;
  RunValues* run = nullptr;  ///< null in an evaluation
};
TESSERA_OP(finish_step, (const Context& context, const FinishStep& arguments), (context, arguments))

}  // namespace tessera::kernels
