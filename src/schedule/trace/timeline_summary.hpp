// What a timeline comes to: how busy lanes were, what communication compute did not hide, how long nothing ran.
#pragma once
#include <initializer_list>

#include "schedule/run/timeline.hpp"

namespace tessera {

struct LaneSummary {
  std::int64_t tasks = 0;
  double busy = 0;                    ///< seconds in which a task ran
  double flops = 0, bytes_moved = 0;  ///< of its tasks
};

/// Whether a summary or trace has a row for a lane of so many tasks: always for those that every run has.
constexpr bool is_shown(Lane lane, std::size_t tasks) { return tasks > 0 || lane <= Lane::reduce; }

struct TimelineSummary {
  double seconds = 0;  ///< of the run; the shares below are of it
  std::array<LaneSummary, lane_count> lanes;
  double busy = 0;     ///< seconds in which a task of any lane ran: what overlaps counts once
  double exposed = 0;  ///< seconds in which a task of another lane ran, and none of compute
  double idle = 0;     ///< seconds in which no task ran
  bool graph = false;  ///< runs that are not traced are one CUDA graph

  double share(double part) const { return seconds > 0 ? part / seconds : 0; }
};

TimelineSummary summarise(const Timeline& timeline);

/// Seconds in which a task of one of these lanes ran and none of any other.
double seconds_alone(const Timeline& timeline, std::initializer_list<Lane> lanes);

/// Runs of the same program that were not traced, to compare with. None: count 0.
struct UntracedRuns {
  std::int64_t count = 0;
  double median_seconds = 0;
};

/// The share of an untraced run in which no task can have been at work, if tasks take as long there as they did in the traced run:
/// 1 - busy / untraced. Gaps inside a task count as busy, so it is a lower bound of what the device idles; less than 0 where tasks took
/// longer when they were traced. None where there is nothing to compare with.
std::optional<double> launch_gap_share(const TimelineSummary& summary, const UntracedRuns& untraced);

/// Lines for people, each after a line break: the run, its lanes, exposed time, idle time, and launch gaps.
std::string print_summary(const TimelineSummary& summary, const UntracedRuns& untraced);

}  // namespace tessera
