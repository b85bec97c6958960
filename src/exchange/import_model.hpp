// A Hugging Face model as a checkpoint of weights alone.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

struct ImportModelOptions {
  std::string model;                   ///< folder with config.json and safetensors
  std::string run;                     ///< folder that becomes a run's: RUN/checkpoints/step-00000000 and latest
  std::vector<std::string> overrides;  ///< "key=value" of the deck that the checkpoint holds
  bool progress = false;               ///< a progress line on the terminal
};
struct ImportModelResult {
  std::string checkpoint;  ///< its folder
  std::string model;       ///< "models/Llama-3.2-1B (LlamaForCausalLM, 146 tensors, 2.30 GiB)"
  std::int64_t bytes = 0;  ///< of weights, fp32
};

/// Streams the weights, whatever their size. Throws what InitialWeights does; Error(usage) where the run's folder has checkpoints already;
/// Error(storage).
ImportModelResult import_model(const ImportModelOptions& options);

}  // namespace tessera
