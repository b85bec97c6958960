#include "train/inference.hpp"

namespace tessera {

LoadedModel load_model(const std::string& checkpoint, std::int64_t micro_batch, const std::string& device) {
  const io::CheckpointReader reader(checkpoint);
  LoadedModel model{.deck = require_deck(parse_stored_deck(reader.meta().deck, reader.folder() + "/checkpoint.h5:deck", device)),
                    .step = reader.meta().step,
                    .engine = nullptr};
  model.deck.zero.stage = 0;
  model.deck.mesh.dp = 1;
  if (micro_batch > 0) model.deck.batch.micro = model.deck.batch.global = micro_batch;
  model.engine = std::make_unique<Engine>(model.deck, DataParallelGroup{},
                                          EngineOptions{.training = false, .evaluation_micro_batches = micro_batch > 0 ? 1 : 0});
  model.engine->read_state(reader);
  return model;
}

}  // namespace tessera
