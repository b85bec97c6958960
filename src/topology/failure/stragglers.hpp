// Ranks that take longer than others for the same work.
#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

#include "topology/failure/whereabouts.hpp"

namespace tessera {

struct Straggler {
  int rank = 0;
  std::string host;
  std::string kind;                ///< of the work that is slowest
  double seconds = 0, median = 0;  ///< of all its work in a step, and of the ranks of its role
};

/// Compares sums of the ranks' notes, each over steps of its own, so that no rank waits for another's number.
class Stragglers {
 public:
  /// By rank; null where nothing is known. Those that have become slow: each rank once. `now` in seconds.
  std::vector<Straggler> judge(std::span<const Spent* const> ranks, double now);

 private:
  struct StragglerWindow {
    double begun = 0;
    std::vector<Spent> before;  ///< by rank
  };
  struct StragglerRank {
    int slow_windows = 0;
    bool named = false;
  };
  std::map<int, StragglerWindow> windows_;  ///< by role
  std::map<int, StragglerRank> ranks_;
};

}  // namespace tessera
