// A start that goes on from what ranks have kept for each other in the memory of nodes, in place of a checkpoint on disk.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint/state_copies.hpp"
#include "topology/neighbours.hpp"
#include "train/engine/engine.hpp"
#include "train/folder/copies_record.hpp"

namespace tessera {

/// Where a shard lies.
struct ShardPlace {
  int rank = 0;           ///< the first of the node
  std::string hash = {};  ///< of its directory, hex
};

/// Copies of a run's state that lie whole on the nodes of a world. Functions are collective.
class NeighbourState {
 public:
  /// The newest after `step`, of the starts that the record names, for which every shard lies on one of the nodes. `fits` says on rank 0
  /// why copies are not those of the run that begins here, or nothing. What is found and cannot be taken is said.
  static std::optional<NeighbourState> find(const World& world, const CopiesRecord& record, std::int64_t step,
                                            const std::function<std::string(const io::CheckpointMeta&)>& fits);

  const io::CheckpointMeta& meta() const { return copies_.meta; }
  io::KeptCopies kept() const { return {.start = start_, .step = copies_.meta.step}; }
  /// Moves what a node's ranks need to it, and loads the engine's state: as load_checkpoint, and AgreedError(checkpoint) where a copy is
  /// damaged or of another model.
  void load(const World& world, const Neighbours& neighbours, Engine& engine) const;

 private:
  NeighbourState() = default;
  std::string folder_on(const World& world) const;
  /// Takes the shards where they lie; "" or which are nowhere.
  std::string place_shards(const std::map<int, std::vector<ShardPlace>>& shards);

  std::string run_, start_;
  io::DescribedCopies copies_;
  std::vector<Hash128> hashes_;            ///< by shard
  std::vector<std::vector<int>> holders_;  ///< by shard: first ranks of the nodes that have it
  std::vector<io::FoundShard> here_;       ///< on this node
};

}  // namespace tessera
