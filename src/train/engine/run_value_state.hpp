// What a run carries beside the state of its parameters (Schedule::values), where it lies for the host: begun, loaded, handed to a save.
#pragma once
#include <span>
#include <vector>

#include "io/checkpoint/saved_state.hpp"
#include "train/engine/memory.hpp"

namespace tessera {

/// Tasks get what is written here from Engine::publish on.
class RunValueState {
 public:
  RunValueState(const RunPlan& plan, const RankMemory& memory) : plan_(plan), memory_(memory) {}
  void begin() const;
  /// As a checkpoint holds them.
  std::vector<io::CheckpointValue> saved() const;
  /// Those of these names; others stay.
  void set(const std::vector<io::CheckpointValue>& values) const;
  /// A checkpoint's. What it lacks begins anew, and what this run has none of is left: rank 0 says both.
  void load(const io::SavedState& from) const;

 private:
  std::byte* address(const RunValue& value) const;
  void write(const RunValue& value, double number) const;
  void write(const RunValue& value, std::span<const float> numbers) const;
  void write(const RunValue& value, const io::CheckpointValue& saved) const;
  const RunPlan& plan_;
  const RankMemory& memory_;
};

}  // namespace tessera
