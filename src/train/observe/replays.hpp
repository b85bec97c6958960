// Computes a step twice, every guards.replay_every steps: what a processor gets wrong once it seldom gets wrong alike.
#pragma once
#include "train/observe/observer.hpp"

namespace tessera {

class Replays : public Observer {
 public:
  explicit Replays(const RunParts& run) : run_(run) {}
  void before(std::int64_t done) override;
  Verdict after(const StepEnd& end) override;

 private:
  bool due(std::int64_t step) const { return run_.deck.guards.replay_every > 0 && step % run_.deck.guards.replay_every == 0; }
  const RunParts& run_;
  StepReport first_ = {};  ///< of the step's first computation
  Engine::OwnSums own_ = {};
};

}  // namespace tessera
