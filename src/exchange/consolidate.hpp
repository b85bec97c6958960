// From sharded checkpoint to whole weights, as a stream with a fixed buffer.
#pragma once
#include <string>
#include <vector>

#include "base/types.hpp"

namespace tessera {

class World;

struct ConsolidateOptions {
  std::string checkpoint, output;      ///< step folder; folder to write
  std::string format = "safetensors";  ///< or hdf5
  DType dtype = DType::f32;            ///< or bf16, fp16 (safetensors)
  std::int64_t max_file_bytes = 5'000'000'000;
  std::vector<std::string> tensors = {};  ///< patterns of the tensors to write, by our names or the export's, whole ones; none: the model
  bool adapter = false;                   ///< the adapter alone, as PEFT reads it; else weights have it in them
  bool optimizer = false;                 ///< with hdf5 also the optimizer's state, as /GROUP/NAME
  bool progress = false;
};

struct ConsolidateResult {
  std::int64_t tensors = 0, bytes = 0;
  std::int64_t kept = 0;  ///< files that an earlier start had finished, found as it left them
  std::vector<std::string> files;
};

/// Needs none of the run's ranks, and memory for one chunk, whatever the model's size. Values are verified against their checksums as they
/// pass. A part of a model is written without config.json: nothing loads it as a model. The ranks of `world` (null: this process) share the
/// files of safetensors, whose bytes do not depend on how many they are; HDF5 is one file, which one process writes. An export that was
/// interrupted goes on with the files that are not finished; what makes a folder a model (index, config.json) comes last. All ranks have
/// the same result.
ConsolidateResult consolidate(const ConsolidateOptions& options, const World* world = nullptr);

}  // namespace tessera
