// Where the wall time of a run went, over all its starts: from the events of its folder and the rows of its steps.
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "base/mfu.hpp"
#include "io/metrics/events.hpp"
#include "io/metrics/metrics.hpp"

namespace tessera {

/// Steps, and what they came to.
struct StepWork {
  std::int64_t steps = 0;
  double seconds = 0, tokens = 0;
  double full_rate_seconds = 0, full_rate_seconds_causal = 0;  ///< that its FLOPs take at the rate that MFU is a share of, by both counts
  double stalled = 0;                                          ///< of the seconds: those in which steps stood still

  StepWork& operator+=(const StepWork& more);
  StepWork& operator-=(const StepWork& less);
};
/// Of `seconds` at these figures, which a step has.
StepWork work_of_step(double seconds, double tokens_per_second, double mfu_full, double mfu_causal, double stalled = 0);

/// Of a step's row; none where it has no share.
std::optional<Mfu> mfu_of_row(const io::MetricRow& row);

Json work_json(const StepWork& work);

/// A step's row of metrics.jsonl.
struct StepRow {
  double time = 0;  ///< seconds since 1970
  std::int64_t step = 0;
  StepWork work = {};
};
/// None of a row of something else.
std::optional<StepRow> step_row(const io::MetricRow& row);

/// In seconds. The parts add up to `wall`, the time from the first launch to the last sign of life.
struct Goodput {
  double wall = 0;
  double productive = 0;  ///< of steps that stand, but for what they stood still
  double stalled = 0;     ///< in which these steps stood still
  double saving = 0;      ///< in which steps waited for saves; what a step waits in itself is the step's
  double evaluating = 0;
  double starting = 0;  ///< from a launch to its first step
  double lost = 0;      ///< of steps that a later start did once more
  double queued = 0;    ///< from the last sign of life of a start to the next launch
  double other = 0;
  StepWork work = {};     ///< of the steps that stand
  std::int64_t done = 0;  ///< steps
  std::int64_t starts = 0;
  bool estimated = false;  ///< rows of steps were not read: those took as long as others did

  double share() const { return wall > 0 ? productive / wall : 0; }
  double tokens_per_second() const { return wall > 0 ? work.tokens / wall : 0; }
  double mfu() const { return wall > 0 ? work.full_rate_seconds / wall : 0; }
  double mfu_causal() const { return wall > 0 ? work.full_rate_seconds_causal / wall : 0; }
};

struct GoodputPart {
  std::string_view name;
  double Goodput::*seconds;
  std::string_view what;
};
std::span<const GoodputPart> goodput_parts();
io::NamedNumbers seconds_of_parts(const Goodput& goodput);
/// As events hold it and commands print it.
Json goodput_json(const Goodput& goodput);

/// The books of a run: events and rows in the order of their times. Of a run from before there were events, what they tell begins with the
/// first one.
class GoodputAccount {
 public:
  GoodputAccount() = default;
  void add(const io::Event& event);
  void add(const StepRow& row);
  /// Until `time`, or the last sign of life where that is later.
  Goodput at(double time) const;
  bool begun() const { return sums_.starts > 0; }

 private:
  friend Goodput goodput(std::span<const io::Event>, std::span<const StepRow>, double);
  /// Goes on from the `goodput` that an event holds.
  explicit GoodputAccount(const io::Event& event);
  void add_start(const io::Event& event);
  void add_starting(double until);
  /// What no part has of the time until then; below 0 where they have more than there was.
  double rest(double time) const;

  Goodput sums_;
  double first_ = 0, seen_ = 0;
  double idle_until_ = 0;  ///< from when on the start under way gets ready
  bool trains_ = false;
  StepWork before_;  ///< what stood before the first event
  double lost_before_ = 0;
  std::int64_t resumed_from_ = -1;
};

/// Of a run whose last sign of life is `time`, or an event or row after that. Events may lack those before one that holds the sums so far,
/// and rows those before that one: where rows lack after it, they are estimated.
Goodput goodput(std::span<const io::Event> events, std::span<const StepRow> rows, double time = 0);

}  // namespace tessera
