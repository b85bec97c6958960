#include "schedule/simulate/simulate.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.hpp"

namespace tessera {
namespace {

/// A task that was played: when, and whose end let it begin.
struct Played {
  double begin = 0, end = 0;
  int section = 0, task = 0;
  std::int64_t counts_for = 1;  ///< itself and the repetitions that were not played
  int before_lane = -1;         ///< -1: it began with the program
  std::int64_t before = 0;      ///< its number on that lane
};

/// What grows with each task. A repetition that is not played adds what the last one added.
struct Totals {
  double seconds = 0;
  std::array<std::int64_t, lane_count> tasks{};
  std::array<double, lane_count> busy{}, exposed{};
  std::array<double, wait_kind_count> waited{};
  double contended = 0;

  /// *this += n * (now - then)
  void add(const Totals& now, const Totals& then, std::int64_t n) {
    const auto times = static_cast<double>(n);
    seconds += times * (now.seconds - then.seconds);
    contended += times * (now.contended - then.contended);
    for (std::size_t l = 0; l < lane_count; ++l) {
      tasks[l] += n * (now.tasks[l] - then.tasks[l]);
      busy[l] += times * (now.busy[l] - then.busy[l]);
      exposed[l] += times * (now.exposed[l] - then.exposed[l]);
    }
    for (std::size_t k = 0; k < wait_kind_count; ++k) waited[k] += times * (now.waited[k] - then.waited[k]);
  }
};

/// "backward layers.17.mlp" -> "backward layers.*.mlp"
std::string kind_of_name(const std::string& name) {
  const std::string_view layers = "layers.";
  const auto at = name.find(layers);
  if (at == name.npos) return name;
  auto end = at + layers.size();
  while (end < name.size() && name[end] >= '0' && name[end] <= '9') ++end;
  return end == at + layers.size() ? name : name.substr(0, at + layers.size()) + "*" + name.substr(end);
}

/// The disks of a node are one device: reads and writes that run side by side share its time. Tasks that come first in the list are served
/// first, others when it is free, in pieces if need be.
class DiskTime {
 public:
  /// When work of so many seconds has been done that may begin then.
  double end_of(double begin, double seconds) {
    auto next = taken_.upper_bound(begin);
    if (next != taken_.begin() && std::prev(next)->second > begin) --next, begin = next->first;
    double at = begin;
    for (double left = seconds;;) {  // `next`: the first time that is taken at `at` or after it
      if (next != taken_.end() && next->first <= at) {
        at = next->second, next = taken_.erase(next);
        continue;
      }
      const double free = next == taken_.end() ? left : std::min(left, next->first - at);
      at += free, left -= free;
      if (left <= 0) break;
    }
    if (at > begin) taken_[begin] = at;
    return at;
  }

 private:
  std::map<double, double> taken_;  ///< begin and end of what is taken, apart from each other
};

/// Seconds in which something ran, of intervals that are added in any order.
class Spans {
 public:
  /// Of [begin, end) what is not among them yet.
  std::vector<std::pair<double, double>> missing(double begin, double end) const {
    std::vector<std::pair<double, double>> parts;
    for (auto it = first_after(begin); begin < end && it != spans_.end() && it->first < end; ++it) {
      if (it->first > begin) parts.emplace_back(begin, it->first);
      begin = std::max(begin, it->second);
    }
    if (begin < end) parts.emplace_back(begin, end);
    return parts;
  }
  void add(double begin, double end) {
    for (const auto& [from, to] : missing(begin, end)) spans_[from] = to;
  }
  /// When work of so many seconds ends that begins then and goes at 1 - `loss` of its rate beside these spans.
  double end_of(double begin, double work, double loss) const {
    double at = begin;
    for (auto it = first_after(begin); it != spans_.end(); ++it) {
      const double from = std::max(at, it->first), free = from - at;
      if (free >= work) break;
      work -= free, at = from;
      const double beside = it->second - from;
      if (beside * (1 - loss) >= work) return at + work / (1 - loss);
      work -= beside * (1 - loss), at = it->second;
    }
    return at + work;
  }

 private:
  using Map = std::map<double, double>;
  /// The first span that ends after that.
  Map::const_iterator first_after(double at) const {
    auto it = spans_.upper_bound(at);
    if (it != spans_.begin() && std::prev(it)->second > at) --it;
    return it;
  }
  Map spans_;  ///< begin and end, apart from each other
};

/// Compute's work in order, and the share of its rate that each piece loses beside a collective.
class ComputeStretches {
 public:
  void add(double begin, double end, double loss) {
    if (end > begin) stretches_.push_back({begin, end, loss});
  }
  /// What compute loses to a collective in [begin, end).
  double lost(double begin, double end) const {
    double seconds = 0;
    auto it = std::ranges::upper_bound(stretches_, begin, {}, &Stretch::end);
    for (; it != stretches_.end() && it->begin < end; ++it) seconds += it->loss * (std::min(end, it->end) - std::max(begin, it->begin));
    return seconds;
  }

 private:
  struct Stretch {
    double begin, end, loss;
  };
  std::vector<Stretch> stretches_;
};

class Player {
 public:
  Player(const Schedule& schedule, const TaskSeconds& seconds, const SimulationOptions& options)
      : schedule_(schedule), seconds_(seconds), options_(options) {}

  void play(const OrderedPhase& phase) {
    const std::int64_t known = static_cast<std::int64_t>(phase.waits.size());
    const std::int64_t played = std::min(phase.repeat, std::max(options_.most_repetitions, known + 1));
    // One in the middle stands for those that are left out: at the end lanes run dry, and the longest path is another.
    const std::int64_t sample = played / 2;
    for (std::int64_t r = 0; r < played; ++r) {
      const Totals before = totals_now();
      counts_for_ = r == sample ? 1 + phase.repeat - played : 1;
      repetition(phase, r);
      if (r == sample) skipped_.add(totals_now(), before, phase.repeat - played);
    }
    left_out_ += phase.repeat - played;
  }

  Simulation finish() {
    close_gap(latest());
    Totals all = totals_now();
    all.add(skipped_, {}, 1);
    Simulation result{.seconds = all.seconds,
                      .tasks = all.tasks,
                      .busy = all.busy,
                      .exposed = all.exposed,
                      .waited = all.waited,
                      .contended = all.contended,
                      .critical = critical_path(),
                      .timeline = {},
                      .left_out = left_out_};
    if (options_.timeline) result.timeline = std::move(timeline_), result.timeline.seconds = ends_;
    return result;
  }

 private:
  void repetition(const OrderedPhase& phase, std::int64_t number) {
    std::array<std::int64_t, lane_count> start{};
    for (std::size_t l = 0; l < lane_count; ++l) start[l] = static_cast<std::int64_t>(lanes_[l].size());
    const SectionWaits& waits = phase.waits_of(number);
    const auto s = static_cast<std::size_t>(phase.section);
    const std::vector<Task>& tasks = schedule_.sections[s].tasks;
    for (std::size_t t = 0; t < tasks.size(); ++t) {
      Played now{.section = phase.section, .task = static_cast<int>(t), .counts_for = counts_for_};
      const auto lane = static_cast<std::size_t>(tasks[t].lane), queue = options_.lanes_side_by_side ? lane : 0;
      if (!lanes_[queue].empty()) after(now, queue, static_cast<std::int64_t>(lanes_[queue].size()) - 1);
      for (std::size_t other = 0; options_.lanes_side_by_side && other < lane_count; ++other)
        if (waits[t][other] && start[other] + *waits[t][other] > 0) after(now, other, start[other] + *waits[t][other] - 1);
      const bool shared = options_.lanes_side_by_side && wait_kind(tasks[t]) == WaitKind::disk;
      now.end = shared ? disk_.end_of(now.begin, seconds_[s][t]) : end_of(now.begin, seconds_[s][t], tasks[t], parts_of(s, t));
      totals_.busy[lane] += shared ? seconds_[s][t] : now.end - now.begin;
      if (tasks[t].lane == Lane::compute) close_gap({now.begin, now.before_lane, now.before});
      note(now, tasks[t], queue, phase.micro_of(number));
    }
  }

  /// Kernels of collectives take a share of a GPU. Where a collective stands behind the compute in the list that it slows down, the next
  /// task of compute makes up for it.
  double end_of(double begin, double seconds, const Task& task, std::span<const LossPart> parts) {
    const double plain = begin + seconds;
    if ((options_.contention <= 0 && !options_.parts) || !options_.lanes_side_by_side || seconds <= 0) return plain;
    if (task.lane == Lane::compute) {
      double end = begin + std::exchange(owed_, 0);
      for (const LossPart& part : parts) {
        const double from = end;
        end = collectives_.end_of(from, seconds * part.share, part.loss);
        compute_.add(from, end, part.loss);
      }
      totals_.contended += end - plain;
      return end;
    }
    if (info_of(task.lane).collective) {
      for (const auto& [from, to] : collectives_.missing(begin, plain)) owed_ += compute_.lost(from, to);
      collectives_.add(begin, plain);
    }
    return plain;
  }
  std::span<const LossPart> parts_of(std::size_t section, std::size_t task) const {
    if (!options_.parts || options_.parts->losses[section][task].empty()) return {&plain_, 1};
    return options_.parts->losses[section][task];
  }

  void note(const Played& now, const Task& task, std::size_t queue, const std::optional<std::int64_t>& micro) {
    const auto lane = static_cast<std::size_t>(task.lane);
    lanes_[queue].push_back(now);
    ends_ = std::max(ends_, now.end);
    ++totals_.tasks[lane];
    if (task.lane == Lane::compute) compute_end_ = now.end;
    if (options_.timeline) timeline_.lanes[lane].push_back({.task = &task, .micro_batch = micro, .begin = now.begin, .end = now.end});
  }

  /// The task begins when that one has ended, or later. Of ends at the same time the own lane's counts.
  void after(Played& task, std::size_t lane, std::int64_t number) const {
    const double end = lanes_[lane][static_cast<std::size_t>(number)].end;
    if (task.before_lane >= 0 && end <= task.begin) return;
    task.begin = end, task.before_lane = static_cast<int>(lane), task.before = number;
  }

  struct Moment {
    double at;
    int lane;
    std::int64_t number;
  };
  /// Seconds since compute last did something are those of the tasks that led here, each beginning with the end of the one before it.
  void close_gap(Moment m) {
    while (m.at > compute_end_ && m.lane >= 0) {
      const Played& p = played(m.lane, m.number);
      const double seconds = m.at - std::max(p.begin, compute_end_);
      totals_.exposed[static_cast<std::size_t>(task_of(p).lane)] += seconds;
      totals_.waited[static_cast<std::size_t>(wait_kind(task_of(p)))] += seconds;
      m = {p.begin, p.before_lane, p.before};
    }
  }
  Moment latest() const {
    Moment m{0, -1, 0};
    for (std::size_t l = 0; l < lane_count; ++l)
      if (!lanes_[l].empty() && (m.lane < 0 || lanes_[l].back().end > m.at))
        m = {lanes_[l].back().end, static_cast<int>(l), static_cast<std::int64_t>(lanes_[l].size()) - 1};
    return m;
  }

  std::vector<CriticalTasks> critical_path() const {
    std::map<std::pair<std::string, Lane>, CriticalTasks> kinds;
    for (Moment m = latest(); m.lane >= 0;) {
      const Played& p = played(m.lane, m.number);
      const Task& task = task_of(p);
      CriticalTasks& kind = kinds[{kind_of_name(task.name), task.lane}];
      kind.count += p.counts_for;
      kind.seconds += static_cast<double>(p.counts_for) * (p.end - p.begin);
      m = {p.begin, p.before_lane, p.before};
    }
    std::vector<CriticalTasks> path;
    for (auto& [name, kind] : kinds) {
      kind.name = name.first, kind.lane = name.second;
      path.push_back(kind);
    }
    std::stable_sort(path.begin(), path.end(), [](const CriticalTasks& a, const CriticalTasks& b) { return a.seconds > b.seconds; });
    return path;
  }

  const Played& played(int lane, std::int64_t number) const {
    return lanes_[static_cast<std::size_t>(lane)][static_cast<std::size_t>(number)];
  }
  const Task& task_of(const Played& p) const {
    return schedule_.sections[static_cast<std::size_t>(p.section)].tasks[static_cast<std::size_t>(p.task)];
  }
  Totals totals_now() const {
    Totals now = totals_;
    now.seconds = ends_;
    return now;
  }

  const Schedule& schedule_;
  const TaskSeconds& seconds_;
  const SimulationOptions& options_;
  std::array<std::vector<Played>, lane_count> lanes_;  ///< by queue: where lanes are not side by side, all are on the first
  Totals totals_, skipped_;
  DiskTime disk_;
  Spans collectives_;
  ComputeStretches compute_;
  LossPart plain_{.share = 1, .loss = options_.contention};
  double owed_ = 0;  ///< work of compute that collectives kept it from
  double ends_ = 0, compute_end_ = 0;
  std::int64_t counts_for_ = 1, left_out_ = 0;
  Timeline timeline_;
};

}  // namespace

WaitKind wait_kind(const Task& task) {
  const LaneInfo& lane = info_of(task.lane);
  if (lane.collective) return WaitKind::communication;
  if (std::holds_alternative<ReadDisk>(task.op) || std::holds_alternative<WriteDisk>(task.op)) return WaitKind::disk;
  return lane.on_host ? WaitKind::host : WaitKind::transfer;
}

Simulation simulate(const Schedule& schedule, const OrderedProgram& program, const TaskSeconds& seconds, const SimulationOptions& options) {
  TESSERA_REQUIRE(seconds.size() == schedule.sections.size(), "times of {} sections for a schedule of {}", seconds.size(),
                  schedule.sections.size());
  Player player(schedule, seconds, options);
  for (const OrderedPhase& phase : program) player.play(phase);
  return player.finish();
}

}  // namespace tessera
