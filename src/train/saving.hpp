// Collective saving and loading: what io does for one rank, in the order that makes it atomic for all.
#pragma once
#include <string>

#include "topology/world.hpp"
#include "train/engine.hpp"

namespace tessera {

class Saver {
 public:
  Saver(const World& world, const Engine& engine, const Deck& deck, std::string root);
  /// Saves the state after `step` steps; returns a line for the log. When a rank cannot write, all ranks throw Error(storage) and the
  /// previous checkpoint stays.
  std::string save(std::int64_t step);

 private:
  const World& world_;
  const Engine& engine_;
  const Deck& deck_;
  std::string root_;
};

/// Every rank reads its part; a damaged shard ends all ranks with one message.
void load_checkpoint(const World& world, Engine& engine, const std::string& path);

}  // namespace tessera
