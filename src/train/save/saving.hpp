// Collective saving and loading: what io does for one rank, in the order that makes it atomic for all.
#pragma once
#include <array>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint/staging.hpp"
#include "topology/world.hpp"
#include "train/engine/engine.hpp"
#include "train/folder/run_folder.hpp"

namespace tessera {

/// What a save holds: all that a run goes on from, below RUN/checkpoints, or the weights alone, which stay for ever below RUN/weights.
enum class SaveOf : std::uint8_t { state, weights };

/// A save that has come to its end.
struct Saved {
  SaveOf what = SaveOf::state;
  std::int64_t step = 0;
  std::string line;     ///< for the log
  double seconds = 0;   ///< from its beginning until it was on the disk
  double stalled = 0;   ///< of which steps waited so long
  double in_steps = 0;  ///< and of that, what a step waited in itself
};

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
  bool reads_copies() const { return awaits_copy_ || (part_ != Part::none && copied_); }
  /// The checkpoint that the run would go on from now; "" for none.
  const std::string& last() const { return last_; }

 private:
  /// What of a save is under way: copies and shards on all ranks, then, where ranks share files, the heads of those, and the index on rank
  /// 0.
  enum class Part : std::uint8_t { none, staging, shards, seals, index };

  /// Where the saves to come are from a copy that the step since has made, or would have: begins with them.
  void begin_copied();
  /// Whether the run's best evaluation is that of this step, and its checkpoint is kept.
  bool is_best(std::int64_t step) const;
  /// Begins with what is saved next of `queue_`; it has taken `seconds` so far, in `stalled` of which steps waited.
  void next(double seconds = 0, double stalled = 0);
  void start();
  void begin(Part part, std::function<void()> work);
  void go_on();
  /// Whether steps go on while the save under way is written.
  bool beside_steps() const { return deck_.checkpoint.async || staged_; }
  /// Links or writes what no step changes, of these slices; what is left of that may be done beside steps. All ranks together.
  std::function<void()> save_constants(const std::vector<io::ShardSlice>& all);
  /// Gives the save under way what no step changes as an earlier save of this start has it. False where there is none, or a file system
  /// without such names: then it is written. All ranks alike.
  bool link_constants();
  void seal_files();
  void complete();
  /// Waits for this rank's part of the work under way and goes on to the next.
  void advance();
  void write_index();
  /// A piece of a save: where it fails on any rank, all ranks know it and the save is over.
  void attempt(const std::function<void()>& piece);
  void failed(const AgreedError& error);
  void saved();
  /// Where the save under way belongs.
  const std::string& root() const { return what_ == SaveOf::state ? root_ : weights_root_; }
  std::vector<io::ShardSlice> slices() const;

  const World& world_;
  Engine& engine_;
  const Deck& deck_;
  std::string root_, weights_root_;
  RunClaim* claim_;
  std::string last_;
  std::vector<io::CheckpointData> data_;
  std::function<void(const Saved&)> note_;
  std::optional<io::Staging> staging_;
  std::vector<int> files_;  ///< the file of each rank; empty: its own
  bool direct_ = false;     ///< the next save does without the node's disk
  // Of the saves under way, which are of one state.
  std::int64_t step_ = 0, sample_cursor_ = 0;
  std::vector<io::CheckpointValue> values_;
  bool awaits_copy_ = false;   ///< the next step makes it
  bool copied_ = false;        ///< they read that copy
  double asked_ = 0;           ///< when they were asked for
  std::vector<SaveOf> queue_;  ///< what comes after the current one
  SaveOf what_ = SaveOf::state;
  bool last_of_run_ = false;
  bool again_ = false;   ///< the folder was moved away in the middle of it
  bool staged_ = false;  ///< it goes by way of the node's disk
  bool linked_ = false;  ///< what no step changes is another save's
  double begin_ = 0, stalled_ = 0, in_steps_ = 0;
  io::CheckpointLayout layout_;
  Part part_ = Part::none;
  std::future<void> work_;                   ///< this rank's; goes first, and waits
  std::array<std::int64_t, 2> failures_{};   ///< in a row, of state and weights
  std::array<std::string, 2> constants_in_;  ///< of state and weights: the last save of this start, where anything is frozen
  std::vector<SaveOf> failed_;               ///< what is to be tried again, with the state that there is then
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
