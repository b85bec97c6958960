// Whom the others have waited for, and for how long: kept for the moment in which somebody asks why a step took so long.
#pragma once
#include <deque>
#include <span>
#include <string>
#include <vector>

namespace tessera {

struct AwaitedRanks {
  std::vector<int> ranks = {};  ///< rising
  std::string names = {};       ///< "rank 1 on n2"
  double seconds = 0;           ///< that one of them was seen to be waited for
  bool stopped = false;         ///< it is this process, of which no thread ran
};

/// What was seen at times of one clock.
class AwaitedLog {
 public:
  /// For `seconds` before `now` the others waited for these ranks.
  void add(double now, double seconds, std::span<const int> ranks);
  /// This process, rank 0, did not run for `seconds` before `now`: what it knew of others before says nothing of that time.
  void add_own_stop(double now, double seconds);
  /// Who was waited for longest after `begin`, with those that were nearly as long. Names are left to who has them.
  AwaitedRanks since(double begin) const;

 private:
  struct Seen {
    double now = 0, seconds = 0;
    std::vector<int> ranks;
    bool stopped = false;
  };
  void keep(Seen seen);
  std::deque<Seen> seen_;
};

}  // namespace tessera
