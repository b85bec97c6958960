// What in a run's figures somebody should look at, said while it runs: each kind once a start.
#pragma once
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "base/progress.hpp"
#include "deck/deck.hpp"

namespace tessera {

/// First steps of a run whose learning rate is 0 by their schedule: two of DeepSpeed's WarmupLR and WarmupDecayLR from 0.
std::int64_t steps_still_by_design(const LearningRateKeys& keys);

/// Of figures alone: no clock and no engine.
class WarningSigns {
 public:
  /// `still_by_design`: first steps of the run whose learning rate is 0 as their schedule has it.
  explicit WarningSigns(std::int64_t still_by_design = 0) : still_by_design_(still_by_design) {}
  /// What is to be said of a step that ended `now` seconds after some begin.
  std::vector<std::string> after(const StepFigures& figures, double now);
  /// Of a save that took so long, where the next is due `interval` seconds after it began (0: none is). "" where that is well.
  std::string after_save(std::int64_t step, double seconds, double interval);

  /// After a save below `folder`, whose file system has less free than the next saves need.
  std::string no_room(std::int64_t step, const std::string& folder, std::int64_t needed, std::int64_t free);

 private:
  enum class Kind : std::uint8_t { jump, no_gradient, still, no_rate, slower, long_save, no_room };
  /// The steps of a minute.
  struct Minute {
    std::int64_t number = 0;
    double tokens = 0, seconds = 0;
  };
  bool first(Kind kind) { return said_.insert(kind).second; }
  std::string jump(const StepFigures& f) const;
  std::string still(const StepFigures& f) const;
  std::string slower(const StepFigures& f, double now);
  double rate_of(std::int64_t begin, std::int64_t end) const;

  std::deque<double> norms_, losses_;  ///< of the latest steps
  std::deque<Minute> minutes_;
  std::int64_t still_by_design_;
  int steps_without_rate_ = 0;
  std::set<Kind> said_;
};

}  // namespace tessera
