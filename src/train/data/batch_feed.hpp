// Batches from the token files into the engine's buffers.
#pragma once
#include <functional>
#include <optional>

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
  /// Of the batch that was read: each sequence is counted where the ranks that share it begin.
  BatchCounts counts() const { return {.document_squares = document_squares(), .padding = counted(padding_)}; }
  /// Mean loss over evaluate.batches micro-batches of the validation tokens, or that it is not finite. Nothing where `stop` has said on a
  /// rank that the run is to stop: it is asked every few micro-batches. Collective.
  std::optional<StepReport> evaluate(const std::function<bool()>& stop);

 private:
  MicroBatch micro_batch(std::int64_t m);
  /// Of preferences: no target counts in a sequence.
  void clear_sequences(std::int64_t m);
  /// By their place in the run's data: what a step draws for a token depends on no layout.
  void number_tokens(std::int64_t m, std::int64_t row, const Sequence& sequence);
  /// Has the engine turn by the longest document of the next step's batch, or of an evaluation's, which is the same on all ranks.
  void turn_by_longest();
  void turn_by_longest_of_evaluation();
  /// Of a pass whose first micro-batch is that of this number, of all ranks'. Returns this rank's tokens of padding.
  std::int64_t read_evaluation(std::int64_t first);
  std::int64_t document_squares() const;
  /// `padding` on the first of the ranks that share this one's sequences, and 0 on others.
  std::int64_t counted(std::int64_t padding) const;

  /// Of the phase that the engine is in.
  const Deck& deck() const { return engine_.planned().request.deck; }

  const World& world_;
  Engine& engine_;
  TrainingData& train_;
  SampleFile* validation_;
  std::int64_t steps_ = 0;    ///< whose batches were read
  std::int64_t padding_ = 0;  ///< of the last batch, in this rank's sequences
};

}  // namespace tessera
