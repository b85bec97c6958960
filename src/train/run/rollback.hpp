// Rollbacks: a run goes back by itself to a checkpoint before a step, and may leave out the data of the steps since.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "train/observe/observer.hpp"

namespace tessera {

/// Functions are collective. World and deck must outlive it.
class Rollback {
 public:
  Rollback(const World& world, const Deck& deck) : world_(world), deck_(deck) {}

  /// Takes the line of rank 0's claim, with the rollbacks of earlier starts.
  void take_lineage(const RunClaim* claim);
  /// What the run leaves out on its line.
  const std::vector<io::LeftOut>& left_out() const { return lineage_.back().way.left_out; }
  /// Whether an earlier start rolled back, and this one leaves out the same after `step`.
  bool leaves_out_after(std::int64_t step, Engine& engine) const;
  /// Rolls back as `going_back` says: to a checkpoint before that step, or to an older one each time that no checkpoint from beyond it
  /// followed. `restore` brings the state of `start` into the engine and returns its step, which this returns too.
  std::int64_t go_back(StartPoint& start, Engine& engine, const std::function<std::int64_t()>& restore);
  /// Writes the rollback to rank 0's claim and to the log.
  void record(const StartPoint& start, RunClaim* claim);

  GoingBack going_back;  ///< why the run rolls back, by an observer
  AgreedCopies agreed;   ///< what a checkpoint must hold

 private:
  /// Rank 0's candidates, the best first.
  std::vector<std::string> candidates(const RunFolder& folder, const io::Ways& ways, std::int64_t target) const;
  /// The place of `step`, with what is left out there, in words.
  std::string describe(std::int64_t step, std::int64_t target, std::int64_t taken, const std::vector<io::LeftOut>& left_out) const;
  /// Whether a checkpoint differs from what all copies were after that step. Then rank 0's candidates are those before it.
  bool is_damaged(const std::string& checkpoint, std::int64_t step, Engine& engine, std::vector<std::string>& candidates);

  const World& world_;
  const Deck& deck_;
  io::Lineage lineage_;  ///< how the run came to where it is
  io::WayBack way_;      ///< of the last rollback
};

}  // namespace tessera
