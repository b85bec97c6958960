// The passes of a micro-batch, as tasks of one section. The class is made for a section and gone with it. section_passes.cpp binds the
// values of passes to bytes, section_parted.cpp keeps gradients of streams for passes for weights, and section_pipeline.cpp has the borders
// of a stage.
#pragma once
#include <string>
#include <vector>

#include "schedule/build/gathers.hpp"
#include "schedule/build/micro_gradients.hpp"
#include "schedule/build/offloaded_streams.hpp"

namespace tessera {

class SectionBuilder {
 public:
  /// Begins a section of `sections`, which outlive the builder as all else does. `phase` describes its passes.
  SectionBuilder(const Frame& frame, Buffers& buffers, Passes& passes, StepPasses& step, std::vector<Section>& sections, std::string name,
                 PipelinePhase phase);
  SectionBuilder(const SectionBuilder&) = delete;
  SectionBuilder& operator=(const SectionBuilder&) = delete;

  Emitter& out() { return out_; }
  int number() const { return out_.number(); }
  /// From here on a unit's update comes before its first use.
  void begin_late_updates();
  /// The passes of these events, with their gathers and reductions.
  void emit_events(const Events& events);
  void emit_end_reductions(bool ends) { gradients_.emit_end_reductions(ends); }

 private:
  Task& emit(Task task) { return out_.emit(std::move(task)); }
  void emit_late_update(int unit);
  void emit_pass(int number, int event, bool first);
  /// A collective in a segment's calls.
  void emit_exchange(const SegmentPass& pass, const Exchange& exchange, int event, bool first);
  Use bind(const Operand& o, const SegmentPass& p, int event, bool first);
  Use bind_of_text(const Operand& o, const std::string& segment, const ValueInfo& v);
  /// How far a pass's micro-batch is ahead of its section's.
  std::int64_t shift_of(const SegmentPass& p) const;
  /// The tier of a value: what collectives touch lies where they can read it.
  Tier tier_of(const ValueInfo& v) const;
  Use activation_use(const std::string& name, const ValueInfo& v, Access access);
  Use activation_of(const Operand& o, const SegmentPass& p, const ValueInfo& v);
  /// The stream that leaves a segment, as a pass sees it.
  std::string stream_name(const SegmentPass& p, SegmentNumber leaves) const;
  Use stream_use(const SegmentPass& p, SegmentNumber leaves, const ValueInfo& v, Access access);

  // ---- Gradients of weights apart from the backward passes (section_parted.cpp) ----

  /// Keeps the gradient of a parted segment's stream for its weights, before the gradient of the stream before overwrites it.
  void emit_stream_gradient_for_weights(const Events& events, int event);
  /// What a backward pass keeps for the gradients of weights.
  Use waiting_use(const std::string& name, const ValueInfo& v, const SegmentPass& p, Access access);

  // ---- Borders of a stage (section_pipeline.cpp) ----

  /// What a forward pass keeps for the backward pass of its micro-batch.
  Use kept_use(const std::string& name, const ValueInfo& v, const SegmentPass& p, Access access);
  Use boundary(Boundary what, const SegmentPass& p, Access access, std::int64_t shift);
  /// Sends or receives what a pass takes or gives.
  void emit_transfer(const SegmentPass& p, bool sends);
  /// Whether the pass of another event goes in the same direction.
  bool goes_on(const Events& events, int event, int other) const;
  /// What comes from a neighbour before this event, and what leaves after it.
  void emit_arrivals(const Events& events, int event);
  void emit_departures(const Events& events, int event);

  Emitter out_;
  const Frame& frame_;
  Buffers& buffers_;
  Passes& passes_;
  StepPasses& step_;
  const PipelinePhase turn_;
  Gathers gathers_;
  MicroGradients gradients_;
  OffloadedStreams streams_;
  std::vector<bool> late_updates_;  // by unit: updates that are still to make
};

}  // namespace tessera
