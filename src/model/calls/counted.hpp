// Rows of a micro-batch whose targets count: the head makes logits of these alone, on the host (kernels/counted_rows).
#pragma once
#include "model/record/recorder.hpp"

namespace tessera {

/// Targets and weights of the rows that the head takes. On a GPU these are all rows, as they lie in the micro-batch.
struct CountedTargets {
  Value targets, weights;  ///< (M)
  Value rows = {};         ///< (M) int32: the row of the micro-batch of each; absent: its own
  CountedRows counted = {};
};
/// `at_once`: rows whose logits are made at once.
CountedTargets counted_targets(Recorder& r, std::int64_t at_once);
/// Finds them; nothing where rows lie as in the micro-batch.
void count_rows(Recorder& r, const CountedTargets& targets);
/// The rows of x (M,N), of `dtype`, that count come first; nothing where rows lie as in the micro-batch.
void gather_counted(Recorder& r, Value x, std::int64_t N, DType dtype, const CountedTargets& targets);
/// And back to their places; the others are zeros.
void spread_counted(Recorder& r, Value x, std::int64_t N, DType dtype, const CountedTargets& targets);

}  // namespace tessera
