// A line on the terminal that says how far a command has come that takes some seconds.
#pragma once
#include <string>

#include "base/clock.hpp"

namespace tessera {

/// On standard error, where that is a terminal: "predict 40 %, 3 s left", from the second second on. It goes with its owner.
class ProgressLine {
 public:
  /// Of so many parts, which take about as long each. `clock` says the time in seconds: tests have one of their own.
  explicit ProgressLine(std::string what, double parts = 1, double (*clock)() = now_seconds);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// So much of the part under way is done, of 1.
  void show(double share);
  void part_ends() { ++done_; }

 private:
  std::string what_;
  double (*clock_)();
  double parts_, done_ = 0, begin_, shown_ = 0;
  bool terminal_;
};

}  // namespace tessera
