// A checkpoint's model in one process, for generate and evaluate.
#pragma once
#include <memory>
#include <string>

#include "train/engine.hpp"

namespace tessera {

struct LoadedModel {
  Deck deck;
  std::int64_t step = 0;
  std::unique_ptr<Engine> engine;
};

/// Reads the weights of a checkpoint, whatever ranks wrote it, to where `device` ("host" or "cuda") has its kernels. `micro_batch`
/// sequences a forward pass (0: no forward passes, weights only).
LoadedModel load_model(const std::string& checkpoint, std::int64_t micro_batch, const std::string& device);

}  // namespace tessera
