// How often a run has gone back by itself without getting any further.
#pragma once
#include <algorithm>
#include <cstdint>

namespace tessera {

class WaysBack {
 public:
  WaysBack() = default;
  /// Of a run that was ended and goes on: what its line says (CheckpointLine), and the newest checkpoint that it had saved on that line (0:
  /// none). So a run that was killed meanwhile counts as one that nobody disturbed.
  WaysBack(std::int64_t reached, std::int64_t times, std::int64_t saved) : reached_(reached), times_(times), saved_before_(saved) {}

  /// The run goes back from `step`, and the newest checkpoint that it has saved since it last did is that of step `saved` (0: none). What
  /// only stood there before is no progress: from a step that is bad each time a run would go back for ever.
  void go_back_from(std::int64_t step, std::int64_t saved) {
    saved = std::max(saved, saved_before_), saved_before_ = 0;
    times_ = saved >= reached_ ? 1 : times_ + 1;
    reached_ = std::max(reached_, step);
  }
  /// Times in a row that the run went back without a checkpoint from beyond the step that it had reached.
  std::int64_t times() const { return times_; }
  std::int64_t reached() const { return reached_; }

 private:
  std::int64_t reached_ = 0, times_ = 0, saved_before_ = 0;
};

}  // namespace tessera
