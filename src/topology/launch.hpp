// MPI in this process: it starts once and ends once, and worlds are made between.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "topology/failure/start.hpp"

namespace tessera {

/// The ranks that a launcher has started. A World is made of its first ranks and ends without it, so that a process can run in several, one
/// after another; the ranks beyond wait meanwhile. One at a time.
class Launch {
 public:
  /// Starts MPI with MPI_THREAD_MULTIPLE and sets the log's identity. Throws Error(environment) when the MPI library cannot run several
  /// threads, or when a launcher started N processes that do not see each other.
  explicit Launch(const StartOptions& start = {});
  /// Ends MPI as end(0) would if nobody called it; during an exception leaves it, since the others may not come.
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  /// Leaves MPI, which may hang: after `seconds` the process ends with `status` without it. Collective over all ranks.
  void end(int status = 0, double seconds = 10);

  /// From now on run_in_world makes its world of so many ranks, where this process's is one of them.
  void choose(int ranks) { chosen_ = ranks; }
  int chosen() const { return chosen_; }

  /// Rank 0's text on all ranks of the launch. It may come after hours: who waits sleeps between looks and leaves the core to others.
  std::string await_text(std::string_view mine);
  /// On rank 0 the texts of the ranks below `ranks`, by rank; on the others nothing. No rank above takes part.
  std::vector<std::string> collect_texts(int ranks, std::string_view mine) const;

  /// The process's own; null where there is none.
  static Launch* current();

 private:
  friend class World;
  void stands();  ///< nobody is waited for any more
  struct Handles;
  std::unique_ptr<Handles> handles_;
  int rank_ = 0, ranks_ = 1, chosen_ = 1;
  int exceptions_at_start_ = 0;
};

/// Calls `leave`, which does not return, unless it is destroyed within `seconds`.
class ExitTimer {
 public:
  ExitTimer(double seconds, std::function<void()> leave);
  ~ExitTimer();
  ExitTimer(const ExitTimer&) = delete;
  ExitTimer& operator=(const ExitTimer&) = delete;

 private:
  struct Waiting;
  std::unique_ptr<Waiting> waiting_;
};

}  // namespace tessera
