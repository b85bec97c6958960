// The services of metrics.wandb and metrics.mlflow, to which rows of a run go too.
#pragma once
#include <memory>
#include <vector>

#include "io/metrics/tracker.hpp"
#include "train/observe/observer.hpp"

namespace tessera {

/// Rank 0's, before the start has written a row. Error(environment) where the Python package of one is missing.
std::vector<std::unique_ptr<io::Tracker>> trackers_of(const RunParts& run);
/// The values of a deck by their keys, as texts of TOML.
Json deck_values(const Deck& deck);

}  // namespace tessera
