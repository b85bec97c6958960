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

/// A checkpoint's deck as one process on `device` ("host" or "cuda") takes it; reads no weights.
Deck load_deck(const std::string& checkpoint, const std::string& device);
/// Reads the weights of a checkpoint, whatever ranks wrote it, to where `device` has its kernels. `micro_batch` sequences a forward pass
/// (0: no forward passes, weights only). Throws Error(memory) before it allocates where the model does not fit, or not with what the caller
/// will take `beside` it.
LoadedModel load_model(const std::string& checkpoint, std::int64_t micro_batch, const std::string& device, const TierBytes& beside = {});

}  // namespace tessera
