// The small values of a step. Tasks hand them to each other through memory, so that a step never branches on the host, on any backend.
#pragma once
#include "kernels/adamw/adamw.hpp"
#include "kernels/fixed/fixed_sum.hpp"

namespace tessera::kernels {

/// Sums of a step. The first 10 int64 of it travel in one all-reduce.
struct StepScalars {
  FixedSum loss;                ///< of micro-batches: sum of token losses
  FixedSum squares;             ///< of the gradient
  std::int64_t faults = 0;      ///< ranks that saw a value that is not finite or does not fit
  std::int64_t stops = 0;       ///< ranks that were asked to stop
  std::int32_t not_finite = 0;  ///< this rank, loss or norm
  std::int32_t overflow = 0;    ///< this rank, fixed point
};
inline constexpr std::int64_t step_sums = 10;

/// Written by the host before a step.
struct StepInputs {
  double targets = 0;         ///< of the global batch (or of the evaluation) that count: losses are divided by them
  double gradient_scale = 1;  ///< tokens of the global batch over its targets: gradients are of sums over tokens
  float learning_rate = 0, bias_correction1 = 1, bias_correction2 = 1;
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  double clipping = 0;  ///< largest global norm; 0: none
  bool stop = false;    ///< this rank was asked to stop
};

/// Read by the host after a step.
struct StepReport {
  double loss = 0, grad_norm = 0;
  std::int32_t not_finite = 0;  ///< 1: weights were left as they were
  std::int32_t overflow = 0;    ///< 1: fixed point was the cause, on this rank
  std::int32_t stop = 0;        ///< 1: a rank was asked to stop
};

/// A micro-batch's loss joins the step's. A weight of 0 is a micro-batch that only keeps ranks in step: nothing of it is read.
struct AddLoss {
  StepScalars* scalars = nullptr;
  const double* loss_sum = nullptr;
  const double* weight = nullptr;
};
TESSERA_OP(add_loss, (const Context& context, const AddLoss& arguments), (context, arguments))

/// Sums and flags of `other`, which tasks of another tier made, join the step's.
TESSERA_OP(join_sums, (const Context& context, StepScalars* scalars, const StepScalars* other), (context, scalars, other))

/// This rank's flags become counts, which the all-reduce of the first step_sums int64 of the scalars adds over ranks.
TESSERA_OP(count_flags, (const Context& context, StepScalars* scalars, const StepInputs* inputs), (context, scalars, inputs))

/// From the sums over all ranks: the report and, in training, clip factor and AdamW's scalars. The clip factor is PyTorch's
/// clip_grad_norm_: the norm plus 1e-6 divides.
struct FinishStep {
  const StepScalars* scalars = nullptr;
  const StepInputs* inputs = nullptr;
  AdamwScalars* adamw = nullptr;  ///< null in an evaluation
  StepReport* report = nullptr;
};
TESSERA_OP(finish_step, (const Context& context, const FinishStep& arguments), (context, arguments))

}  // namespace tessera::kernels
