// activation.recompute = "auto": the cheapest choice of what is made again with which a plan fits.
#pragma once
#include "schedule/build/builder.hpp"
#include "schedule/plan/limits.hpp"

namespace tessera {

/// What auto chooses among. A pure function of the deck's record.
struct RecomputeChoices {
  std::vector<LevelCost> levels;  ///< recompute_levels(), cheapest first
  std::set<std::string> keep;     ///< of activation.keep
  std::int64_t layers = 0;        ///< of the model

  explicit RecomputeChoices(const Deck& deck);
  /// The first `n` layers at level `early`, the others at `late`.
  struct Place {
    int early = 0, late = 0;
    std::int64_t n = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  RecomputeChoice at(const Place& place) const;
  /// FLOPs that a micro-batch makes again; calls of kernels decide between equal ones.
  std::pair<double, double> cost(const Place& place) const;
};

/// The cheapest place whose plan fits the limits; where none fits, all layers at the last level. Makes a few dozen plans.
RecomputeChoices::Place choose_recompute(const BuildRequest& request, const RecomputeChoices& choices, const MemoryLimits& limits);

/// Settles `auto` in a request that trains; does nothing to others.
void settle_recompute(BuildRequest& request, const MemoryLimits& limits);

/// "mlp.gate_up in the first 42 of 80 layers, nothing in the others"
std::string describe(const RecomputeChoice& choice, std::int64_t layers);

}  // namespace tessera
