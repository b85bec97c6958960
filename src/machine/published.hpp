// Training runs that others have published: inputs/published/runs.toml, which is a part of the program.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

struct PublishedRun {
  std::string program, model, machine, source;
  std::vector<std::string> keys;  ///< of the deck that is nearest to it
  std::int64_t gpus = 0;
  double tokens_per_second = 0;  ///< of one GPU
};

/// In the order of the file.
const std::vector<PublishedRun>& published_runs();

}  // namespace tessera
