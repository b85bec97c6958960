// The passes that a program makes of the model's segments, and what is known of them over all of its sections.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "model/record/recompute.hpp"
#include "schedule/build/frame.hpp"
#include "schedule/build/pipeline_order.hpp"
#include "zero/residency.hpp"

namespace tessera {

/// Passes in order, by their number: the events that residencies are planned over.
using Events = std::vector<int>;

/// Readings of segments, and the tensor that an operand is, found once.
class Passes {
 public:
  /// Both become the schedule's.
  Passes(const Layout& layout, std::vector<Tower>& towers, std::vector<SegmentPass>& passes);

  /// Adds a tower and returns its number.
  int add(Tower tower);
  /// Numbers of those that there are.
  std::vector<int> towers() const;
  const Tower& tower(int number) const { return towers_[index(number)]; }
  const Segment& segment_of(const SegmentPass& p) const { return tower(p.segment.tower).at(p.segment); }
  /// The number of the stream that leaves a segment, among those of all towers.
  int stream(SegmentNumber leaves) const { return tower(leaves.tower).streams + leaves.segment; }
  /// Adds a pass of a tower as tasks: one, or where it has collectives several.
  void add(Events& events, int tower, SegmentPass pass);
  /// Forward passes of a tower that keep nothing.
  Events forward(int tower);

  const SegmentPass& at(int number) const { return passes_[index(number)]; }
  const ValueInfo& value(const SegmentPass& p, const Operand& o) const { return segment_of(p).at(o.value); }
  /// What a weight, its gradient or its packed copy is a part of.
  const TensorRef& tensor(const SegmentPass& p, const Operand& o) const { return tensors_[index(stream(p.segment))][index(o.value)]; }
  bool any_value(ValueKind kind) const;

 private:
  void find_tensors(Tower& tower);

  const Layout& layout_;
  std::vector<Tower>& towers_;
  std::vector<SegmentPass>& passes_;
  std::vector<std::vector<TensorRef>> tensors_;  // by stream that leaves the segment, and value
};

/// A gradient's sum that meets those of other ranks later than it is complete.
struct Meeting {
  int unit = 0, whole = 0;           ///< and the buffer with all elements of its sum
  bool first = false, last = false;  ///< of the step's
};

/// Streams at the borders of a stage, and their gradient, which turns from that of one into that of the other.
enum class Boundary : std::uint8_t { incoming, outgoing, gradient };

/// What the sections of a program have in common. Of forward passes that keep nothing, empty but for the passes.
class StepPasses {
 public:
  /// Of the passes that write a unit's gradient.
  struct Writers {
    bool weights = false;                 ///< those for weights alone end it
    int first_chunk = 0, last_chunk = 0;  ///< in the order of the backward passes
  };

  StepPasses(const Frame& frame, Events forward) : frame_(frame), all_(std::move(forward)) {}
  /// Of a training step: forward passes of towers that train nothing, then of the model forward passes in order and backward passes in
  /// reverse.
  StepPasses(const Frame& frame, Passes& passes, const std::vector<int>& towers);

  const Events& all() const { return all_; }
  /// Those that a phase has.
  Events of_phase(const Passes& passes, const PipelinePhase& phase) const;
  const std::vector<PipelinePhase>& order() const { return order_; }
  /// Whether passes keep something for others.
  bool keeps() const { return !flights_.empty(); }
  bool keeps(const SegmentPass& p) const { return activations_.contains(p.segment.tower); }
  const InFlight& flight(int chunk) const { return flights_[index(chunk)]; }
  /// Whether the stream that leaves a segment is made again where it is needed.
  bool stream_dropped(SegmentNumber leaves) const { return activations_.at(leaves.tower).stream_dropped[index(leaves.segment)]; }
  const Writers& writers(int unit) const { return writers_.at(unit); }
  /// Whether gradients of weights read a kept value of this name.
  bool waits(const std::string& name) const { return waits_.contains(name); }
  /// Whether a segment's gradient of the stream waits for those of weights.
  bool keeps_gradient(SegmentNumber segment) const { return keeps_gradient_.contains(segment); }

  // Names of buffers.

  std::string stream_name(const Passes& passes, const SegmentPass& p, SegmentNumber leaves) const;
  std::string made_again_name(const Segment& segment, const ValueInfo& v) const;
  std::string boundary_name(const Passes& passes, Boundary what, const SegmentPass& p) const;

  std::map<int, std::map<std::string, TensorRef>> waiting_gradients = {};  ///< by unit: tensors whose gradient backward passes have written
  std::vector<Meeting> at_end = {};  ///< with the other end of the pipeline, which come after all that goes there

 private:
  void add_trained(Passes& passes, int tower);
  /// A backward pass and what of it comes later, which `weights` gets.
  void add_parted(Passes& passes, Events& weights, SegmentNumber segment);
  /// What the passes for weights read of those before them.
  void note_waiting(const Passes& passes, const Events& weights);
  /// Which passes make a unit's gradient.
  void note_writers(const Passes& passes);

  const Frame& frame_;
  Events all_;
  std::map<int, ActivationPlan> activations_ = {};  // by tower that trains
  std::vector<PipelinePhase> order_ = {};
  std::vector<InFlight> flights_ = {};   // by chunk
  std::map<int, Writers> writers_ = {};  // by unit
  std::set<std::string> waits_ = {};
  std::set<SegmentNumber> keeps_gradient_ = {};
};

}  // namespace tessera
