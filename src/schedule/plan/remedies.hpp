// What to change where a plan does not fit: changes of the deck that do fit, each found by planning it.
#pragma once
#include "schedule/build/builder.hpp"
#include "schedule/plan/limits.hpp"

namespace tessera {

struct Remedy {
  std::string change;  ///< as overrides are written: "zero.stage=2 batch.micro=1"; "--ranks 128" where the launch changes
  std::string cost;    ///< in words, against the step as it is
  TierBytes bytes{};   ///< of the plan with it
};

struct Remedies {
  std::vector<Remedy> found;  ///< cheapest first; those that change the same keys as a cheaper one last
  TierBytes least{};          ///< of the smallest plan that was tried
  bool stopped = false;       ///< before all changes were tried, since the schedules are very long
};

/// The cheapest changes with which the plan of a training run fits. Of the keys that change the trained function batch.micro alone is
/// changed, and then said to. Changes that leave the number of ranks alone come first, in the order of what a step then costs more: FLOPs,
/// and bytes of collectives as the FLOPs that a rank makes while they travel (a rule for the order alone). Makes up to some two hundred
/// plans.
Remedies find_remedies(const BuildRequest& request, const MemoryLimits& limits, std::size_t most = 3);

/// What an error says after the shortfall: the changes a line each, or that there is none.
std::string print_remedies(const Remedies& remedies, const Deck& deck);

}  // namespace tessera
