// The layouts of a step among which a recommendation is looked for.
#pragma once
#include "machine/profile.hpp"
#include "schedule/plan/changes.hpp"

namespace tessera {

/// A deck, by what it changes of another.
struct SearchPoint {
  std::vector<Change> changes;
  Deck deck;                   ///< with them
  std::size_t layout = 0;      ///< number of its stage and tiers of optimizer and parameters
  std::size_t activation = 0;  ///< number of its recompute and activation.offload
  std::size_t group = 0;       ///< the same for points that differ in what is gathered ahead and kept between two uses alone
};

/// Stage x tiers of optimizer and parameters that the profile has figures of x recompute x activation.offload x batch.micro, and at stage 3
/// what is gathered ahead and kept. All points pass the rules of decks.
std::vector<SearchPoint> search_space(const Deck& deck, const MachineProfile& machine, int ranks);

}  // namespace tessera
