// Collective saving and loading: what io does for one rank, in the order that makes it atomic for all.
#pragma once
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint/staging.hpp"
#include "topology/world.hpp"
#include "train/engine/engine.hpp"
#include "train/folder/run_folder.hpp"
#include "train/save/save.hpp"

namespace tessera {

/// Saves checkpoints, one at a time: while the steps wait, or by a thread of each rank beside the steps, from a copy of the state in memory
/// that the next step makes (checkpoint.async) or from one on a disk of the node (checkpoint.staging; where that disk fails, the steps
/// wait). All ranks call the same functions in the same order. A save that fails costs nothing of what stands: the checkpoint before it
/// stays, and `due` asks for another after the next step. Where checkpoint.retries of those have failed as well, or the run has no next
/// step, all ranks throw Error(storage).
class Saver {
 public:
  /// `claim` and `data`, what the run is trained on, are rank 0's; `last` the checkpoint that the run started from, "" for none; `note`
  /// hears of each save.
  Saver(const World& world, Engine& engine, const Deck& deck, const RunFolder& folder, RunClaim* claim, std::string last,
        std::vector<io::CheckpointData> data, std::function<void(const Saved&)> note);
  Saver(const Saver&) = delete;

  /// What is to be saved after `step` steps: by the deck, at the run's end, or since it has failed before. `state_too`: of the state, a
  /// save that is not the last may be made.
  std::vector<SaveOf> due(std::int64_t step, bool last_of_run, bool state_too) const;
  /// The same before the step is evaluated: whether a save of the state may follow it.
  bool may_be_due(std::int64_t step, bool last_of_run) const;
  /// Saves what the state after `step` steps is, or begins to; at the run's end it waits until all stands. Saves under way go before.
  void save(std::int64_t step, bool last_of_run, const std::vector<SaveOf>& what);
  /// At the start of a run that goes on after `step`: what was due then and does not stand, since a kill came before. Collective.
  std::vector<SaveOf> missing(std::int64_t step) const;
  /// After a step: goes on with the save under way where all ranks have come so far.
  void look();
  /// Waits for the save under way.
  void finish();
  /// Whether what a step has copied, or is to copy, is this save's.
  bool reads_copies() const { return save_.reads_copies(); }
  /// The checkpoint that the run would go on from now; "" for none.
  const std::string& last() const { return last_; }

 private:
  /// What outlives the saves of the state, or of weights.
  struct Kind {
    std::string root;               ///< the folder of its checkpoints
    std::string constants_in = {};  ///< the last save of this start, if anything is frozen
    std::int64_t failures = 0;      ///< in a row
    bool again = false;             ///< to be tried again, with the state that there is then
  };
  const std::string& root() const { return kinds_.at(save_.what).root; }

  /// Begins the saves that waited for a step's copy.
  void begin_copied();
  /// Begins with the first of `queue_`. It has taken `seconds` so far, of which steps waited `stalled`.
  void next(double seconds = 0, double stalled = 0);
  void start();
  /// Enters the next state of the save, with its work.
  void enter_next_state();
  /// Ends the work of this state on all ranks, and enters the next.
  void go_on();
  /// Whether steps go on while the save under way is written.
  bool beside_steps() const { return deck_.checkpoint.async || save_.staged; }
  /// Links or writes what no step changes, of these slices. Returns what of it is left to do beside steps. All ranks together.
  std::function<void()> save_constants(const std::vector<io::ShardSlice>& all);
  /// Links constants to those of an earlier save of this start. False if there is none, or if the file system has no links. All ranks
  /// alike.
  bool link_constants();
  void write_shard();
  void seal_files();
  void write_index();
  /// Waits for this rank's part of the work under way, and goes on.
  void advance();
  /// A piece of a save: if it fails on any rank, all ranks know it and the save is over.
  void attempt(const std::function<void()>& piece);
  void failed(const AgreedError& error);
  void saved();

  const World& world_;
  Engine& engine_;
  const Deck& deck_;
  std::map<SaveOf, Kind> kinds_;
  RunClaim* claim_;
  std::string last_;
  std::vector<io::CheckpointData> data_;
  std::function<void(const Saved&)> note_;
  std::optional<io::Staging> staging_;
  std::vector<int> files_;     ///< the file of each rank; empty: its own
  bool direct_ = false;        ///< the next save does without the node's disk
  Save save_;                  ///< under way
  std::vector<SaveOf> queue_;  ///< what follows it, of the same state of the run
  std::future<void> work_;     ///< this rank's; destroyed first, and waits
};

/// What a save says of its run, but for its step and what follows from that.
io::CheckpointMeta meta_of_save(const Deck& deck, const io::Lineage& lineage, const std::vector<io::CheckpointData>& data);
/// What of a rank's slices lies in a shard.
std::vector<io::ShardSlice> slices_in(const io::CheckpointLayout& layout, int shard, std::vector<io::ShardSlice> slices);

/// The first of rank 0's candidates that verifies to the last byte, and a warning for each before it; all ranks share the reading. "" where
/// there are no candidates; Error(checkpoint) where none verifies. `who` chooses: "run.resume = newest-good".
std::string choose_verified(const World& world, const std::string& who, const std::vector<std::string>& candidates);

/// Collective, when the folder is claimed: removes what a killed start left in `last`, the folder in which it staged its saves, where that
/// is none or another one now (a Saver looks into its own). Empty: it had none.
void clear_last_staging(const World& world, const std::string& last, const Deck& deck, const RunFolder& folder);

/// Every rank reads its part; a damaged shard ends all ranks with one message.
void load_checkpoint(const World& world, Engine& engine, const std::string& path);

}  // namespace tessera
