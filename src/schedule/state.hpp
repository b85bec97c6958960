// The small values that tasks hand each other through memory, so that a step never branches on the host.
#pragma once
#include <cstdint>

#include "kernels/adamw/adamw.hpp"
#include "kernels/fixed/fixed.hpp"

namespace tessera {

/// Sums of a step. The first 10 int64 of it travel in one all-reduce.
struct StepScalars {
  kernels::FixedSum loss;       ///< of micro-batches: sum of token losses
  kernels::FixedSum squares;    ///< of the gradient
  std::int64_t faults = 0;      ///< ranks that saw a value that is not finite or does not fit
  std::int64_t stops = 0;       ///< ranks that were asked to stop
  std::int32_t not_finite = 0;  ///< this rank, loss or norm
  std::int32_t overflow = 0;    ///< this rank, fixed point
};

/// Written by the host before a step.
struct StepInputs {
  double tokens = 0;  ///< of the global batch (or of the evaluation): losses are divided by it
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

}  // namespace tessera
