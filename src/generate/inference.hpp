// A checkpoint's model in one process, for generate and evaluate.
#pragma once
#include <memory>
#include <string>

#include "train/engine/engine.hpp"

namespace tessera {

struct LoadedModel {
  Deck deck;
  std::int64_t step = 0;
  std::unique_ptr<Engine> engine;
};

/// A checkpoint's deck as one process on `device` (host or cuda) takes it; reads no weights.
Deck load_deck(const std::string& checkpoint, RunDevice device);
/// What a model is loaded for.
struct LoadOptions {
  std::int64_t micro_batch = 0;              ///< sequences of an evaluation's forward pass; 0: no evaluation
  bool fewer_where_they_do_not_fit = false;  ///< down to one
  std::int64_t sequence_length = 0;          ///< their tokens; 0: the deck's
  bool mask_documents = false;               ///< of an evaluation, also where the deck does not
  bool pads = false;                         ///< they end in padding (Engine::padding)
  std::int64_t loss_groups = 0;              ///< of an evaluation: BuildRequest
  TextSize text = {};                        ///< of no capacity: no text
};
/// Reads the weights of a checkpoint, whatever ranks wrote it, to where `device` has its kernels. Throws Error(memory) before it allocates
/// where the model does not fit with all that its programs need. Where a run removes the checkpoint meanwhile, what `checkpoint` leads to
/// then is read.
LoadedModel load_model(const std::string& checkpoint, RunDevice device, const LoadOptions& options = {});

}  // namespace tessera
