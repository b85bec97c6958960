// Batches from the token files into the engine's buffers.
#pragma once
#include "topology/world.hpp"
#include "train/data/training_data.hpp"
#include "train/engine/engine.hpp"

namespace tessera {

/// One rank's. What it is made of must outlive it.
class BatchFeed {
 public:
  /// `validation`: null where nothing is evaluated.
  BatchFeed(const World& world, Engine& engine, TrainingData& train, SampleFile* validation);

  /// Reads this rank's part of the batch of step `step`, counted from 0, from where the run's cursor stands. An Error names the step.
  void read(std::int64_t step);
  /// The sum of the squares of documents' lengths in this rank's part of the batch that was read: each sequence is counted where the ranks
  /// that share it begin. 0 where documents are not masked.
  std::int64_t document_squares() const;
  /// Mean loss over evaluate.batches micro-batches of the validation tokens, or that it is not finite. Collective.
  StepReport evaluate();

 private:
  MicroBatch micro_batch(std::int64_t m);

  /// Of the phase that the engine is in.
  const Deck& deck() const { return engine_.planned().request.deck; }

  const World& world_;
  Engine& engine_;
  TrainingData& train_;
  SampleFile* validation_;
  std::int64_t steps_ = 0;  ///< whose batches were read
};

}  // namespace tessera
