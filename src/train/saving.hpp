// Collective saving and loading: what io does for one rank, in the order that makes it atomic for all.
#pragma once
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint/staging.hpp"
#include "topology/world.hpp"
#include "train/engine/engine.hpp"
#include "train/run_folder.hpp"

namespace tessera {

/// A save that has come to its end.
struct Saved {
  std::int64_t step = 0;
  std::string line;    ///< for the log
  double seconds = 0;  ///< from its beginning until it was on the disk
  double stalled = 0;  ///< of which steps waited so long
};

/// Saves checkpoints, one at a time: while the steps wait, or by a thread of each rank beside the steps, from a copy of the state in memory
/// (checkpoint.async) or on a disk of the node (checkpoint.staging; where that disk fails, the steps wait). All ranks call the same
/// functions in the same order. A save that fails costs nothing of what stands: the checkpoint before it stays, and `due` asks for another
/// after the next step. Where checkpoint.retries of those have failed as well, or the run has no next step, all ranks throw Error(storage).
class Saver {
 public:
  /// `claim` is rank 0's, null on others; `last` the checkpoint that the run started from, "" for none; `note` hears of each save.
  Saver(const World& world, Engine& engine, const Deck& deck, std::string root, RunClaim* claim, std::string last,
        std::function<void(const Saved&)> note);
  Saver(const Saver&) = delete;

  /// Saves the state after `step` steps, or begins to; of the run's last state it waits until it stands. One that is under way goes before.
  void save(std::int64_t step, bool last_of_run);
  /// After a step: goes on with the save under way where all ranks have come so far.
  void look();
  /// Whether a save has failed and is to be tried again, with the state that there is now.
  bool due() const { return due_; }
  /// Waits for the save under way.
  void finish();
  /// The checkpoint that the run would go on from now; "" for none.
  const std::string& last() const { return last_; }

 private:
  /// What of a save is under way: copies and shards on all ranks, then, where ranks share files, the heads of those, and the index on rank
  /// 0.
  enum class Part : std::uint8_t { none, staging, shards, seals, index };

  void start();
  void begin(Part part, std::function<void()> work);
  void go_on();
  /// Whether steps go on while the save under way is written.
  bool beside_steps() const { return deck_.checkpoint.async || staged_; }
  void seal_files();
  void complete();
  void write_index();
  /// A piece of a save: where it fails on any rank, all ranks know it and the save is over.
  void attempt(const std::function<void()>& piece);
  void failed(const AgreedError& error);
  void saved();

  const World& world_;
  Engine& engine_;
  const Deck& deck_;
  std::string root_;
  RunClaim* claim_;
  std::string last_;
  std::function<void(const Saved&)> note_;
  std::optional<io::Staging> staging_;
  std::vector<int> files_;  ///< the file of each rank; empty: its own
  bool direct_ = false;     ///< the next save does without the node's disk
  // Of the save under way.
  std::int64_t step_ = 0;
  bool last_of_run_ = false;
  bool again_ = false;   ///< the folder was moved away in the middle of it
  bool staged_ = false;  ///< it goes by way of the node's disk
  double begin_ = 0, stalled_ = 0;
  io::CheckpointLayout layout_;
  Part part_ = Part::none;
  std::future<void> work_;     ///< this rank's; goes first, and waits
  std::int64_t failures_ = 0;  ///< in a row
  bool due_ = false;
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
