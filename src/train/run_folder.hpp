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
  std::string checkpoint;   ///< step folder to load; "" starts from new weights
  bool move_aside = false;  ///< an earlier run stands in the folder and run.overwrite says to move it
};

/// Rank 0 only, before any work: checks that the folder may be written and that it belongs to this deck (else refuses, naming the keys
/// that differ), and finds the checkpoint that run.resume asks for. Changes nothing, so that a run that is refused leaves no trace.
StartPoint examine_run_folder(const Deck& deck);

/// Rank 0 only, when everything else of the start has succeeded: moves an earlier run aside (never deletes one), makes the folder and
/// writes deck.toml.
void claim_run_folder(const Deck& deck, const StartPoint& start);

}  // namespace tessera
