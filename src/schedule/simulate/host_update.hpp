// What helps a step that waits for the optimizer on the host's cores, by the simulator.
#pragma once
#include <string>
#include <vector>

#include "schedule/simulate/recommend.hpp"

namespace tessera {

struct Help {
  std::string change;  ///< as it is written, or what another machine would have
  double tokens_per_second = 0;
};

/// The changes that make a deck with its optimizer's state on the host faster by a twentieth at least and fit, the fastest first: more
/// tokens a step, less of the state on the host, more ranks, a faster memory of the host. Empty where compute waits less than a fifth of
/// the step `now` for the host, and where nothing helps.
std::vector<Help> help_with_host_update(const Deck& deck, const Prediction& now, const MachineProfile& machine, const Placement& placement,
                                        const std::function<MemoryLimits(const Deck&, int ranks)>& limits);

/// Lines for people; empty where there is no help.
std::string print_help(const std::vector<Help>& help, const Prediction& now);

}  // namespace tessera
