// What a run remembers of its evaluations: which was the best, and how many in a row brought no improvement. Checkpoints carry it, so that
// a run that goes on, or goes back, knows what it knew then.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "io/checkpoint/saved_state.hpp"

namespace tessera {

/// The same on all ranks.
struct EvaluationRecord {
  std::int64_t evaluations = 0;
  std::int64_t targets = 0;       ///< of each; evaluations of other data are not compared with these
  std::int64_t best_step = -1;    ///< -1: none
  double best = 0;                ///< its loss
  double reference = 0;           ///< the loss of the last improvement
  std::int64_t without = 0;       ///< evaluations since then
  std::int64_t last_step = -1;    ///< of the last evaluation
  std::int64_t before_step = -1;  ///< the best before that one; not saved, as `before`
  double before = 0;

  /// Takes an evaluation. It is the best where its loss is below all before, and an improvement where it is lower than that of the last
  /// one by more than `min_improvement`. False where its targets are others in number: then it is the first of a new record.
  bool take(std::int64_t step, double loss, std::int64_t of_targets, double min_improvement);
  /// The checkpoint of that step was not saved: the best is the one before it.
  void lose(std::int64_t step);
  /// Whether `patience` evaluations in a row brought no improvement; 0: never.
  bool exhausts(std::int64_t patience) const { return patience > 0 && without >= patience; }

  /// As a checkpoint holds it; nothing before the first evaluation.
  std::vector<io::CheckpointValue> values() const;
  static EvaluationRecord of(const std::vector<io::CheckpointValue>& values);
  /// Whether a value of a checkpoint is of this record.
  static bool names(std::string_view value);
  friend bool operator==(const EvaluationRecord&, const EvaluationRecord&) = default;
};

}  // namespace tessera
