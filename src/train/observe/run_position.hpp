// Where a run is, for another thread that tells other ranks.
#pragma once
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "topology/failure/whereabouts.hpp"

namespace tessera {

class RunPosition {
 public:
  /// `stage`: what this rank does outside the engine's tasks. Stays where it is.
  void turn_to(const char* stage);
  /// The step after `done` begins.
  void begin_step(std::int64_t done) { step_.store(done + 1, std::memory_order_relaxed); }
  /// It took so long; `spent`: of the work that waits for no rank, by kind, empty where that is not known.
  void end_step(double seconds, const std::map<std::string, double>& spent);
  void set_role(int role) { role_.store(role); }
  /// But for the engine's tasks.
  RankWork work() const;

 private:
  std::atomic<const char*> stage_{""};
  std::atomic<double> moved_{0};
  std::atomic<std::int64_t> step_{0};
  std::atomic<int> role_{0};
  mutable std::mutex mutex_;
  std::deque<double> latest_;  ///< seconds of steps
  Spent spent_;
};

}  // namespace tessera
