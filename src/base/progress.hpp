// What a person watches: a line a step, and on a terminal a bar with the time left.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "base/mfu.hpp"

namespace tessera {

/// "2 h 05 min", "3 min 20 s", "12 s".
std::string human_duration(double seconds);

/// The figures of one step.
struct StepFigures {
  std::int64_t step = 0;  ///< 1-based, as people count
  double loss = 0, grad_norm = 0, learning_rate = 0, tokens_per_second = 0, seconds = 0;
  Mfu mfu = {};
};

class Progress {
 public:
  /// `left`: what is to be done after so many steps, in a unit of which each takes as long; none: in steps.
  Progress(std::int64_t first_step, std::int64_t steps, std::int64_t log_every, std::string memory,
           std::function<double(std::int64_t done)> left = {});
  /// `loss_of_files`: of a mixture, by their paths; no number for a file that gave no target.
  void step(const StepFigures& figures, std::span<const std::pair<std::string, double>> loss_of_files = {});
  /// A line of its own, without tearing the bar.
  void note(const std::string& line);
  void warn(const std::string& line);
  void finish();

 private:
  void clear_bar();
  void draw_bar();
  double seconds_left() const { return seconds_of_unit_ * left_(done_); }
  std::int64_t steps_, done_, log_every_;
  std::string memory_;
  bool terminal_;
  std::function<double(std::int64_t)> left_;
  double seconds_of_unit_ = 0;
};

}  // namespace tessera
