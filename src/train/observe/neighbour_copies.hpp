// Copies the state into the memory of this rank's node and of another one, every checkpoint.neighbour_every steps and beside them: from the
// copy that the next step makes (Engine::copy_with_next_step), which a save beside the steps shares.
#pragma once
#include <atomic>
#include <future>
#include <optional>
#include <string>

#include "io/checkpoint/state_copies.hpp"
#include "train/observe/progress_log.hpp"
#include "train/save/saving.hpp"

namespace tessera {

class NeighbourCopies : public Observer {
 public:
  /// Collective.
  NeighbourCopies(const RunParts& run, Saver& saver, ProgressLog& progress);
  Verdict after(const StepEnd& end) override;
  void phase_ends() override { complete(); }
  void finish(std::int64_t done) override;
  /// What is under way is given up: other ranks do the same, or have ended.
  ~NeighbourCopies() override;

 private:
  void begin(std::int64_t step);
  /// What a thread of this rank does once the step under way has made the copy: writes it and passes it on. Where this rank has failed, the
  /// others still get what they wait for.
  void copy();
  /// This rank's files are written; "" or why they are not.
  std::string write() const;
  void write_constants() const;
  /// `mine` goes to this rank's keeper, `theirs` comes: numbers of shards.
  void pass_on(int mine, int theirs, std::string& fault) const;
  /// Waits for what is under way; what no step has copied yet is left.
  void complete();
  /// All ranks have come to its end.
  void agree();
  bool writes_constants() const { return has_constants(layout_, run_.world.ranks()) && last_ < 0; }

  const RunParts& run_;
  Saver& saver_;
  ProgressLog& progress_;
  std::int64_t every_;
  io::CheckpointMeta meta_;  ///< of what is under way
  io::CheckpointLayout layout_;
  std::optional<io::StateCopies> copies_;
  std::string fault_;                  ///< of what was written before the thread began
  std::atomic<bool> given_up_{false};  ///< no step makes the copy
  double begun_ = 0;
  std::int64_t last_ = -1;  ///< the step whose copies are whole on all nodes; -1: none of this start
  std::future<void> work_;  ///< goes first, and waits
};

}  // namespace tessera
