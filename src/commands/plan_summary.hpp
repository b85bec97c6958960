// What `tessera plan` says first: does it fit, how fast is it, what does it cost.
#pragma once
#include <optional>
#include <string>

#include "commands/plan_options.hpp"
#include "memory/tier.hpp"
#include "schedule/simulate/prediction.hpp"

namespace tessera {

/// Seconds of a step with the fastest and the slowest of what programs reach (efficiency of the profile).
struct Band {
  double fast = 0, slow = 0;
  bool given() const { return slow > 0; }
};

struct PlanSummary {
  const PlanOptions& options;
  const Deck& deck;
  const TierBytes& bytes;
  const MemoryLimits& limits;
  bool fits = true;
  const std::optional<MachineProfile>& machine;
  const std::optional<Prediction>& prediction;
  Band band = {};
};

/// Three lines: `fits`, `step`, `cost`.
std::string print_summary(const PlanSummary& summary);

/// What others have published of like models on this machine, in the same type of products; empty: nothing.
std::string published_line(const Deck& deck, const MachineProfile& machine);

}  // namespace tessera
