// The folder of a run: deck.toml, metrics.jsonl, checkpoints/. It belongs to one deck.
#pragma once
#include <string>

#include "deck/deck.hpp"

namespace tessera {

struct RunFolder {
  std::string path;
  std::string checkpoints() const { return path + "/checkpoints"; }
  std::string metrics() const { return path + "/metrics.jsonl"; }
  std::string deck() const { return path + "/deck.toml"; }
};

/// What a run starts from.
struct StartPoint {
  RunFolder folder;
  std::string checkpoint;  ///< step folder to load; "" starts from new weights
};

/// Rank 0 only, before any work: makes the folder, checks that it may be written, that it belongs to this deck (else refuses, naming the
/// keys that differ), and finds the checkpoint that run.resume asks for. With run.overwrite an existing folder is moved aside, never
/// deleted.
StartPoint open_run_folder(const Deck& deck);

}  // namespace tessera
