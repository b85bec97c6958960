// The state of a model on one rank: made from a seed, loaded, handed to a save. What lies where is the schedule's to say (Schedule::state).
#pragma once
#include <functional>
#include <span>

#include "io/checkpoint/saved_state.hpp"
#include "optimizer/state.hpp"
#include "train/engine/memory.hpp"
#include "train/engine/run_value_state.hpp"
#include "train/engine/saved_layout.hpp"

namespace tessera {

/// Weights that stand outside checkpoints.
struct WeightSource {
  std::function<bool(const Parameter&)> has;
  /// Values of a box of a tensor that it has, row-major, from its element `at` on.
  std::function<void(const Parameter&, const Box&, std::int64_t at, std::span<float> out)> read;
};

class ModelState {
 public:
  ModelState(const RunPlan& plan, const RankMemory& memory) : plan_(plan), memory_(memory), values_(plan, memory) {}

  // What follows writes the fp32 state; compute copies are made from it afterwards (Engine::publish).

  /// Weights from the deck's seed: each element depends on (seed, tensor name, element) alone. Moments become zero.
  void initialise() const;
  /// `value(parameter row, first element, out)` gives a tensor's values in its natural shape; moments become zero.
  void set(const std::function<void(const Parameter&, std::int64_t, std::span<float>)>& value) const;
  /// Weights that the source has, and the others from the deck's seed; moments become zero. Only boxes that this rank keeps are asked for,
  /// in pieces where they do not lie on the host.
  void read(const WeightSource& source) const;
  /// This rank's part of a checkpoint: weights and moments (zeros where it has weights alone), or where there is no training the compute
  /// copies alone. Throws Error(checkpoint) that names the first tensor that differs in name or shape.
  void load(const io::SavedState& from) const;
  /// Whether the checkpoint has what ranks keep of their own (Held::own), of another number of ranks: it begins at zero.
  bool leaves_own(const io::SavedState& from) const;

  const RunValueState& values() const { return values_; }

  io::CheckpointLayout checkpoint_layout() const { return saved().checkpoint; }
  /// This rank's slices, read where they lie: valid until the next step.
  std::vector<io::ShardSlice> checkpoint_slices() const { return slices_of(plan_.schedule.state); }
  /// The same as a step has copied them.
  std::vector<io::ShardSlice> copied_slices() const { return slices_of(plan_.schedule.copies); }
  /// What no step changes lies in the host's memory, where a save may read it beside steps.
  bool constants_on_host() const;

 private:
  using Fill = std::function<void(std::int64_t element, std::span<float> out)>;

  const Unit& unit_of(const Held& held) const { return plan_.layout().units[static_cast<std::size_t>(held.unit)]; }
  const Parameter& parameter_of(const Piece& piece) const { return plan_.layout().table[static_cast<std::size_t>(piece.parameter)]; }
  /// The model's weights, or those of a tower beside it.
  bool is_of_weights(const Held& held) const { return held.group == master_group || !unit_of(held).tower.empty(); }
  const Slot& slot_of(const Held& held, const Piece& piece) const { return unit_of(held).slots[static_cast<std::size_t>(piece.slot)]; }
  /// A piece of the weights from the deck's seed, where it was zero before.
  void draw(const Held& held, const Piece& piece) const;
  /// Where an element of the unit lies, in the type that it is held in.
  std::byte* address(const Held& held, std::int64_t element) const;
  kernels::Context context(const Held& held) const;
  void clear(const Held& held) const;
  /// Elements [begin, begin + n) of the unit as `fill` gives them: written where they lie, or, in a GPU's memory or another type, piece by
  /// piece by way of the host.
  void write(const Held& held, std::int64_t begin, std::int64_t n, const Fill& fill) const;
  std::vector<io::ShardSlice> slices_of(const std::vector<Held>& all) const;
  /// This rank's part of what is held, as a save reads it.
  io::ShardSource source_of(const Held& held, const Range& mine) const;
  void load_held(const Held& held, const io::SavedState& from) const;
  void load_lines(const Held& held, const io::SavedState& from) const;
  void load_own(const Held& held, const io::SavedState& from) const;
  /// A unit of no tensors, in which each rank has a slice.
  io::CheckpointUnit own_unit(const Held& held, const io::CheckpointLayout& layout) const;
  /// The number of that unit in a checkpoint of as many ranks.
  std::optional<int> find_own(const Held& held, const io::CheckpointLayout& layout) const;
  void load_weights(const io::SavedState& from) const;
  /// All ranks keep the same boxes: one holding.
  SavedLayout saved() const;

  const RunPlan& plan_;
  const RankMemory& memory_;
  RunValueState values_;
};

}  // namespace tessera
