// Gradients of a section's micro-batch: where kernels write them, how they join the step's sums, and when they are reduced over ranks.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "schedule/build/gradient_reduction.hpp"
#include "schedule/build/step_passes.hpp"

namespace tessera {

class MicroGradients {
 public:
  MicroGradients(Emitter& out, const Passes& passes, StepPasses& step, const PipelinePhase& phase)
      : out_(out), passes_(passes), step_(step), phase_(phase) {}

  /// Finds after which of these events each gradient is complete.
  void plan(const Events& events);
  /// Where a pass writes a tensor's gradient.
  Use tensor_gradient_use(const std::string& name, const TensorRef& tensor, const SegmentPass& p, bool first);
  /// Sums the gradients that an event has completed, and reduces those that nothing delays.
  void emit_done(int event);
  /// Reduces the delayed gradients. Each is delayed until the next unit's is complete: until then its bytes are its own, and the backward
  /// pass of that unit does not wait for the reduction.
  void emit_delayed_reductions();
  /// Reduces gradients that both ends of the pipeline share. At the end of the last section (`ends`) all of them, because later tasks of
  /// that lane wait for the other stage; before, those whose buffer ends with the section.
  void emit_end_reductions(bool ends);

 private:
  struct Shared {
    std::string name;
    TensorRef tensor;
  };
  void emit_zero_padding(int unit, int target);
  std::vector<std::vector<int>> find_done(const Events& events) const;
  /// Tensors that two segments use (tied embeddings), by the event after which the first of them has given its gradient. In exact sums
  /// each is rounded alone, as on two stages of a pipeline with one each.
  std::map<int, Shared> find_shared(const Events& events) const;
  void emit_shared_sum(const Shared& shared);
  void emit_gradient_done(int unit, bool first, bool last);
  /// Adds the micro-batch's gradient to the buffer that is reduced. Returns that buffer.
  int emit_sum(int unit, int micro, bool first);
  void emit_accumulate(int unit, const Range& elements, bool first);
  /// The largest magnitude of a term in fixed point, so that no sum overflows.
  std::int64_t fixed_limit_of(int unit) const;

  // Backward passes apart from those for weights (zero_bubble).

  Use waiting_gradient_use(const std::string& name, const TensorRef& tensor, Access access, std::int64_t shift);
  /// Copies what backward passes have written of a unit's gradient to what the passes for weights write.
  void emit_joined_gradients(int unit);

  Emitter& out_;
  const Passes& passes_;
  StepPasses& step_;
  const PipelinePhase& phase_;
  std::vector<std::vector<int>> done_;      // units by event
  std::map<int, Shared> shared_;            // by event
  std::set<std::string> touched_;           // tensors whose gradient has begun
  std::set<int> summed_;                    // units whose exact sum already holds a part of this micro-batch
  std::set<int> touched_units_;             // units whose micro-batch buffer is live
  std::vector<GradientReduction> delayed_;  // in order
};

}  // namespace tessera
