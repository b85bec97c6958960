// Batches from the token files into the engine's buffers, and what is counted in them.
#pragma once
#include <optional>

#include "topology/world.hpp"
#include "train/data/training_data.hpp"
#include "train/engine/engine.hpp"

namespace tessera {

/// What the host counts in the batch of a step, over all ranks.
struct BatchCounts {
  std::optional<std::int64_t> targets = {};           ///< that count in the loss; nothing where all tokens do
  std::optional<std::int64_t> document_squares = {};  ///< the sum of the squares of documents' lengths, where these are masked
};

/// One rank's. What it is made of must outlive it.
class BatchFeed {
 public:
  /// `validation`: null where nothing is evaluated.
  BatchFeed(const World& world, const Deck& deck, Engine& engine, TrainingData& train, SampleFile* validation);

  /// Reads this rank's part of the batch of step `step`, counted from 0, from where the run's cursor stands. An Error names the step.
  void read(std::int64_t step);
  /// Of the batch that was read. Collective.
  BatchCounts count() const;
  /// Mean loss over evaluate.batches micro-batches of the validation tokens, or that it is not finite. Collective.
  StepReport evaluate();

 private:
  MicroBatch micro_batch(std::int64_t m);
  std::int64_t counted_targets(std::int64_t micro_batches) const;
  std::int64_t counted_squares() const;

  const World& world_;
  const Deck& deck_;
  Engine& engine_;
  TrainingData& train_;
  SampleFile* validation_;
  std::int64_t steps_ = 0;  ///< whose batches were read
};

}  // namespace tessera
