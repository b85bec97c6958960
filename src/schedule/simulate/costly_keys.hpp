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

/// Of a step: its changes are tried where nobody asked for a search.
inline constexpr std::int64_t most_played_tasks = 60'000;

struct StepAdvice {
  std::vector<CostlyKey> keys;        ///< those whose change saves a fiftieth of a step or more, the one that saves most first
  std::optional<CostlyKey> together;  ///< of these as many as go together, if they are several
  bool left_out = false;              ///< nothing was tried: a step has so many tasks that it would take seconds
};

/// What makes the step `now` shorter and fits: buckets, what is gathered ahead and live, overlap_comm, larger micro-batches, another stage,
/// less offloading, less that is made again, collectives of full width, copies of parameters inside a node; of a pipeline another order and
/// smaller micro-batches. Each change alone, then together. All pass the rules of decks.
StepAdvice advise(const BuildRequest& request, const Prediction& now, const MachineProfile& machine, const Placement& placement,
                  const LimitsOf& limits);

/// A zero.max_live_parameters of the deck that no gather meets, in words; else empty.
std::string idle_limit(const BuildRequest& request);

/// "zero.prefetch_bucket_size=auto saves 226.1 ms of a step of 6.106 s (3.7 %); now zero.prefetch_bucket_size = 0"
std::string text_of(const CostlyKey& costly, const Prediction& now);

}  // namespace tessera
