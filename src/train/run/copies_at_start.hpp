// What a start has to do with copies of its run's state in the memory of nodes: those that the last one left, and its own.
#pragma once
#include <optional>
#include <vector>

#include "train/observe/run_position.hpp"
#include "train/save/neighbour_state.hpp"

namespace tessera {

/// Functions are collective. World, deck and engine must outlive it.
class CopiesAtStart {
 public:
  /// Refuses ranks whose copies would lie on the node that they are lost with, and a folder without room.
  CopiesAtStart(const World& world, const Deck& deck, Engine& engine, const StartPoint& start);

  /// The step whose state is there now, where copies that are newer than the checkpoint were found and loaded. Where they cannot be read a
  /// warning says so, and the checkpoint is to be loaded. `data` are rank 0's.
  std::optional<std::int64_t> restore(const StartPoint& start, const std::vector<io::CheckpointData>& data, RunPosition& position);
  /// The folder is this run's: names this start's copies there, and removes what earlier starts have left but for what this one went on
  /// from.
  void claim(const StartPoint& start);
  /// All copies.
  void remove() const;
  /// The same where this rank alone ends the run, by a fault after which nobody goes on from them. Not collective. Before the folder is
  /// claimed those of the last start stay.
  void abandon() const;

  /// Null without checkpoint.neighbour_every.
  Neighbours* neighbours() { return neighbours_ ? &*neighbours_ : nullptr; }
  const CopiesRecord& record() const { return record_; }

 private:
  void require_room() const;

  const World& world_;
  const Deck& deck_;
  Engine& engine_;
  std::optional<CopiesRecord> last_;  ///< the last start's
  CopiesRecord record_;
  std::optional<RunFolder> claimed_;
  std::optional<io::KeptCopies> kept_;  ///< what this start went on from
  std::optional<Neighbours> neighbours_;
};

}  // namespace tessera
