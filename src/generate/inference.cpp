#include "generate/inference.hpp"

#include <fmt/format.h>

#include "io/checkpoint/checkpoint.hpp"
#include "train/engine/device.hpp"
#include "train/engine/fit.hpp"

namespace tessera {
namespace {

Deck deck_of(const io::CheckpointReader& reader, RunDevice device) {
  Deck deck = require_deck(parse_stored_deck(reader.meta().deck, reader.folder() + "/checkpoint.h5:deck", std::string(word_of(device))));
  deck.zero.stage = 0;
  deck.zero.offload_optimizer.device = deck.zero.offload_param.device = OffloadDevice::none;
  deck.mesh = {.dp = 1};
  deck.memory.device = 0;                // of the machine that it was trained on
  deck.precision.fp8 = Fp8Recipe::none;  // which one machine multiplies and another does not
  if (deck.kernels.attention == AttentionMode::cudnn)
    deck.kernels.attention = AttentionMode::native;  // cuDNN may not be where the checkpoint is read
  return deck;
}

std::string what_to_do(const LoadOptions& options) {
  return fmt::format("Choose another --device or a machine with more memory{}.",
                     options.text.capacity > 0 ? ", or use fewer --tokens and a shorter prompt" : "");
}

RunPlan plan_of(Deck& deck, const LoadOptions& options, std::int64_t rows) {
  if (rows > 0) deck.batch.micro = deck.batch.global = rows;
  BuildRequest request = request_for(deck, Mesh{}, 0, rows > 0 ? Purpose::evaluation : Purpose::generation);
  request.text = options.text, request.loss_groups = options.loss_groups;
  return plan_run(request);
}

LoadedModel load_from(const io::CheckpointReader& reader, RunDevice device, const LoadOptions& options) {
  LoadedModel model{.deck = deck_of(reader, device), .step = reader.meta().step, .engine = nullptr};
  if (options.mask_documents) model.deck.data.document_mask = true;
  if (options.pads) model.deck.data.packing = Packing::documents;
  if (options.sequence_length > 0) model.deck.batch.sequence_length = options.sequence_length;
  // No sum of a text depends on ranks, so it need not be made at the price of one that could.
  if (options.text.capacity > 0) model.deck.run.reproducible = false;
  const MemoryLimits limits = limits_here(model.deck, 1);
  RunPlan plan = plan_of(model.deck, options, options.micro_batch);
  for (std::int64_t rows = options.micro_batch / 2; rows > 0 && options.fewer_where_they_do_not_fit; rows /= 2) {
    if (shortfalls(model.deck, plan.memory.bytes, limits).empty()) break;
    plan = plan_of(model.deck, options, rows);
  }
  require_fits(plan, limits, what_to_do(options));
  require_true_products(model_shape(model.deck), model.deck.run.reproducible);
  model.engine = std::make_unique<Engine>(std::move(plan));
  model.engine->read_state(reader);
  model.engine->publish();
  return model;
}

}  // namespace

Deck load_deck(const std::string& checkpoint, RunDevice device) { return deck_of(io::CheckpointReader(checkpoint), device); }

LoadedModel load_model(const std::string& checkpoint, RunDevice device, const LoadOptions& options) {
  return io::read_checkpoint(checkpoint, [&](const io::CheckpointReader& reader) { return load_from(reader, device, options); });
}

}  // namespace tessera
