// How long somebody has waited for others.
#pragma once
#include "base/clock.hpp"

namespace tessera {

/// Counted by whoever waits and looks again and again, at least four times a second. Where a look comes much later than that, this process
/// did not run (a suspended job, a machine that slept), and those it waits for may not have either: waiting begins anew.
class Patience {
 public:
  /// Seconds waited so far. `now` is what the clock shows.
  double waited(double now = now_seconds()) {
    if (now - seen_ > gap_seconds) begin_ = now;
    seen_ = now;
    return now - begin_;
  }

 private:
  static constexpr double gap_seconds = 1;
  double begin_ = now_seconds(), seen_ = begin_;
};

}  // namespace tessera
