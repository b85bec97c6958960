// Collective saving and loading: what io does for one rank, in the order that makes it atomic for all.
#pragma once
#include <string>
#include <vector>

#include "topology/world.hpp"
#include "train/engine/engine.hpp"
#include "train/run_folder.hpp"

namespace tessera {

class Saver {
 public:
  /// `claim` is rank 0's, null on others; `last` the checkpoint that the run started from, "" for none.
  Saver(const World& world, Engine& engine, const Deck& deck, std::string root, RunClaim* claim, std::string last);
  /// Saves the state after `step` steps; returns a line for the log. When a rank cannot write, all ranks throw Error(storage) and the
  /// previous checkpoint stays. A folder that is moved away in the middle of it is made again, and the save begins anew.
  std::string save(std::int64_t step);
  /// The checkpoint that the run would go on from now; "" for none.
  const std::string& last() const { return last_; }

 private:
  const World& world_;
  Engine& engine_;
  const Deck& deck_;
  void write(std::int64_t step);
  std::string root_;
  RunClaim* claim_;
  std::string last_;
};

/// What the saves to come need at once of the disk, when `own` checkpoints of the run's line stand there already: checkpoint.keep + 1,
/// since the oldest goes only when the newest is whole.
std::int64_t disk_bytes_needed(const Deck& deck, std::int64_t first_step, std::int64_t own, std::int64_t checkpoint_bytes);
/// Rank 0: warns where the folder's file system has less room than that.
void foresee_full_disk(const Engine& engine, const Deck& deck, std::int64_t first_step, const std::string& root,
                       const io::Lineage& lineage);

/// The first of rank 0's candidates that verifies to the last byte, and a warning for each before it; all ranks share the reading. "" where
/// there are no candidates; Error(checkpoint) where none verifies.
std::string choose_verified(const World& world, const std::vector<std::string>& candidates);

/// Every rank reads its part; a damaged shard ends all ranks with one message.
void load_checkpoint(const World& world, Engine& engine, const std::string& path);

}  // namespace tessera
