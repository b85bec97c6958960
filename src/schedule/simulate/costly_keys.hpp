// Keys of a deck that make its step longer than it need be, by the simulator.
#pragma once
#include <string>
#include <vector>

#include "schedule/simulate/recommend.hpp"

namespace tessera {

struct CostlyKey {
  std::string key;     ///< as the deck has it: "zero.prefetch_bucket_size = 0"
  std::string change;  ///< what saves it, as it is written: "zero.prefetch_bucket_size=auto"
  double seconds = 0;  ///< of a step with the change alone
};

/// Keys that cost more than a fiftieth of the step `now` each, the costliest first, where the change fits: what is gathered ahead and live,
/// buckets, overlap_comm = false, and micro-batches so small that each gather serves little. Empty where compute waits for communication
/// less than that, and of a pipeline, whose stages are told apart. What `request` makes again stays so.
std::vector<CostlyKey> costly_keys(const BuildRequest& request, const Prediction& now, const MachineProfile& machine,
                                   const Placement& placement, const LimitsOf& limits);

/// "zero.prefetch_bucket_size = 0 costs 3.7 % of a step (6.106 s); zero.prefetch_bucket_size=auto saves it"
std::string text_of(const CostlyKey& costly, const Prediction& now);

}  // namespace tessera
