// How long steps take, and which one stood still in between. Of seconds alone: no clock and no engine.
#pragma once
#include <cstddef>
#include <deque>
#include <optional>

namespace tessera {

/// A step that took many times what the steps before it did, and some seconds more.
struct Stall {
  double seconds = 0;  ///< of the step, but for what it waited for a save
  double usual = 0;    ///< median of the steps before it
  double excess() const { return seconds - usual; }
};

/// A stall took at least so many times the median, and so many seconds more than it.
inline constexpr double stall_times = 5, stall_seconds = 5;

class StepPace {
 public:
  /// A step took so long, and so much of it waited for the copies of a save, which has its own name and is no stall. Nothing where it did
  /// not stand still beside that, or where too few steps came before it.
  std::optional<Stall> after(double seconds, double saving = 0);
  /// The next step is another work.
  void forget() { before_.clear(); }

 private:
  std::deque<double> before_;
};

}  // namespace tessera
