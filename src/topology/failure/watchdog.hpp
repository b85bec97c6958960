// A run that does not move: when that is said, and how.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "topology/failure/account.hpp"

namespace tessera {

struct WatchdogOptions {
  bool on = false;
  bool ends = false;          ///< the run, once it is said
  double limit_seconds = 0;   ///< 0: it follows from the steps before
  double most_seconds = 150;  ///< of a limit that follows from steps
};

/// How long a run may stand still. `longest`: seconds of the longest of the latest steps, 0 while they are too few. Outside programs (in a
/// save, say) nothing tells that work goes on, so as long as may be.
double watchdog_limit(const WatchdogOptions& options, double longest, bool in_program);

/// Seconds without a note after which a rank counts as one that does not answer.
inline constexpr double silent_seconds = 2.5;

struct StillRun {
  std::string table;         ///< after a line break each: rows of ranks that are at the same
  std::string cause;         ///< a sentence: whom the others wait for
  std::vector<int> awaited;  ///< those ranks; none where all wait
};
/// Those that the others wait for; none where all wait for the same.
std::vector<int> awaited_ranks(std::span<const RankNote> notes);
StillRun describe_still(std::span<const RankNote> notes, std::span<const std::string> hosts);

}  // namespace tessera
