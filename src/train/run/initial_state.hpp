// The state that a run begins with: a checkpoint, a model that run.init names, or new weights.
#pragma once
#include <cstdint>
#include <optional>

#include "exchange/initial_weights.hpp"
#include "train/engine/engine.hpp"
#include "train/folder/run_folder.hpp"
#include "train/observe/run_position.hpp"

namespace tessera {

/// Functions are collective. World and deck must outlive it.
class InitialState {
 public:
  InitialState(const World& world, const Deck& deck) : world_(world), deck_(deck) {}

  /// Reads what is known of the model of run.init, if the run begins with it: what cannot be served is said before time is spent.
  void foresee(const StartPoint& start);
  /// Brings the state into the engine. Returns the steps that are done.
  std::int64_t restore(const StartPoint& start, Engine& engine, RunPosition& position);

 private:
  std::int64_t load(const StartPoint& start, Engine& engine, RunPosition& position);
  /// The steps of a checkpoint. Warns if the run that saved it had seen other data in them.
  std::int64_t steps_of(const std::string& checkpoint) const;

  const World& world_;
  const Deck& deck_;
  std::optional<InitialWeights> initial_;  ///< until they are read
};

}  // namespace tessera
