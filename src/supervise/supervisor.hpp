// Starts the ranks of a run, and starts them again where a rank or a node was lost, inside one allocation.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "supervise/launch.hpp"

namespace tessera {

struct SupervisedRun {
  std::vector<std::string> program = {};   ///< the ranks' command line: PROGRAM train DECK [KEY=VALUE...]
  std::vector<std::string> to_go_on = {};  ///< what follows it from the second start on
  std::string output_dir = {};             ///< the run's folder, beside which the record stands
  std::string json = {};                   ///< file for what the table has; empty: none
  double probe_seconds = 10;
  SuperviseRules rules = {};
  FirstLaunch first = {};
  std::function<bool(int)> fits = {};  ///< whether the deck can run on so many ranks
};

/// The status of the run (docs/operations.md). Throws Error(environment) where somebody supervises this run already.
int supervise(const SupervisedRun& run);

}  // namespace tessera
