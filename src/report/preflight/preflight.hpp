// tessera preflight: what ranks reach before a run depends on them, and who of them is slower than the others.
#pragma once
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "report/nodes/node_facts.hpp"
#include "report/preflight/verdict.hpp"
#include "topology/world.hpp"

namespace tessera {

struct PreflightOptions {
  double seconds = 4;  ///< of measuring, shared by all measures, and as many again where a rank was slow
  RunDevice device = RunDevice::automatic;
  int threads = 0;  ///< of a rank; 0: its cores
  bool share_gpu = false;
  PreflightKeys keys = {};
  std::vector<std::string> folders = {};  ///< of this rank
  NodeRoots roots = {};
};

/// Folders that a run of the deck writes to: its own, or the nearest above it that there is, a node's own for saves, and those of disks.
std::vector<std::string> folders_of(const Deck& deck);

/// Collective over the world; options but the folders are the same on all ranks. The verdict is whole on rank 0.
PreflightVerdict run_preflight(const World& world, const PreflightOptions& options);

}  // namespace tessera
