#include "generate/inference.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace tessera {
namespace {

Deck deck_of(const io::CheckpointReader& reader, const std::string& device) {
  Deck deck = require_deck(parse_stored_deck(reader.meta().deck, reader.folder() + "/checkpoint.h5:deck", device));
  deck.zero.stage = 0;
  deck.mesh.dp = 1;
  if (deck.kernels.attention == "cudnn") deck.kernels.attention = "native";  // cuDNN may not be where the checkpoint is read
  return deck;
}

std::string what_to_do(const TierBytes& beside) {
  const bool grows = std::any_of(beside.begin(), beside.end(), [](std::int64_t bytes) { return bytes > 0; });
  return fmt::format("Choose another --device or a machine with more memory{}.",
                     grows ? ", or ask for less: fewer --tokens and a shorter prompt take less" : "");
}

}  // namespace

Deck load_deck(const std::string& checkpoint, const std::string& device) { return deck_of(io::CheckpointReader(checkpoint), device); }

LoadedModel load_model(const std::string& checkpoint, std::int64_t micro_batch, const std::string& device, const TierBytes& beside) {
  const io::CheckpointReader reader(checkpoint);
  LoadedModel model{.deck = deck_of(reader, device), .step = reader.meta().step, .engine = nullptr};
  if (micro_batch > 0) model.deck.batch.micro = model.deck.batch.global = micro_batch;
  BuildRequest request = request_for(model.deck, Mesh{}, 0, Purpose::evaluation);
  if (micro_batch == 0) request.evaluation_micro_batches = 0;
  model.engine = std::make_unique<Engine>(plan_run(request), EngineOptions{.beside = {.bytes = beside, .advice = what_to_do(beside)}});
  model.engine->read_state(reader);
  model.engine->publish();
  return model;
}

}  // namespace tessera
