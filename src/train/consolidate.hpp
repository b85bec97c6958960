// From sharded checkpoint to whole weights, as a stream with a fixed buffer.
#pragma once
#include <string>

#include "base/types.hpp"

namespace tessera {

struct ConsolidateOptions {
  std::string checkpoint, output;      ///< step folder; folder to write
  std::string format = "safetensors";  ///< or hdf5
  DType dtype = DType::f32;            ///< or bf16 (safetensors)
  std::int64_t max_file_bytes = 5'000'000'000;
  bool progress = false;
};

struct ConsolidateResult {
  std::int64_t tensors = 0, bytes = 0;
  std::vector<std::string> files;
};

/// Needs one process, none of the run's ranks, and memory for one chunk, whatever the model's size. Values are verified against their
/// checksums as they pass.
ConsolidateResult consolidate(const ConsolidateOptions& options);

}  // namespace tessera
