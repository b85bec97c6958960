// The reduction of a unit's gradient over ranks, into the sum that the step keeps.
#pragma once
#include "schedule/build/emitter.hpp"

namespace tessera {

/// A unit's gradient of a micro-batch, complete on this rank. `whole` is a buffer with all elements of the unit.
struct GradientReduction {
  int unit = 0, whole = 0;
  bool first = false, last = false;  ///< of the step's micro-batches
};

/// Where kernels write a unit's gradient: the step's sum, or a buffer of this micro-batch.
int gradient_buffer(Emitter& out, int unit);
/// The buffer of exact or rounded sums.
int sum_buffer(Emitter& out, int unit);
void emit_rounding(Emitter& out, int unit, const Use& to, const Use& from, DType type);
void emit_gradient_reduction(Emitter& out, const GradientReduction& reduction);

}  // namespace tessera
