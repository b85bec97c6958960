#include "schedule/trace/timeline_summary.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace tessera {
namespace {

using Span = std::pair<double, double>;

/// Seconds that are inside any of the spans.
double covered(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end());
  double sum = 0, reached = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (i == 0) reached = spans[i].first;
    sum += std::max(0.0, spans[i].second - std::max(spans[i].first, reached));
    reached = std::max(reached, spans[i].second);
  }
  return sum;
}

void append(std::vector<Span>& spans, const std::vector<TaskTime>& tasks) {
  for (const TaskTime& task : tasks) spans.emplace_back(task.begin, task.end);
}

std::string milliseconds(double seconds) { return fmt::format("{:.3f} ms", 1e3 * seconds); }

}  // namespace

TimelineSummary summarise(const Timeline& timeline) {
  TimelineSummary summary{.seconds = timeline.seconds, .lanes = {}, .graph = timeline.graph};
  std::vector<Span> all;
  for (std::size_t lane = 0; lane < lane_count; ++lane) {
    std::vector<Span> mine;
    append(mine, timeline.lanes[lane]);
    append(all, timeline.lanes[lane]);
    LaneSummary& row = summary.lanes[lane];
    row = {.tasks = static_cast<std::int64_t>(mine.size()), .busy = covered(std::move(mine))};
    for (const TaskTime& task : timeline.lanes[lane]) row.flops += task.task->flops, row.bytes_moved += task.task->bytes_moved;
  }
  summary.busy = covered(std::move(all));
  // Of all that is covered, what compute does not cover is communication that stood alone.
  summary.exposed = summary.busy - summary.lanes[static_cast<std::size_t>(Lane::compute)].busy;
  summary.idle = std::max(0.0, summary.seconds - summary.busy);
  return summary;
}

double seconds_alone(const Timeline& timeline, std::initializer_list<Lane> lanes) {
  std::vector<Span> all, others;
  for (std::size_t lane = 0; lane < lane_count; ++lane) {
    append(all, timeline.lanes[lane]);
    if (std::ranges::find(lanes, static_cast<Lane>(lane)) == lanes.end()) append(others, timeline.lanes[lane]);
  }
  return covered(std::move(all)) - covered(std::move(others));
}

std::optional<double> launch_gap_share(const TimelineSummary& summary, const UntracedRuns& untraced) {
  if (untraced.count == 0 || untraced.median_seconds <= 0) return std::nullopt;
  return 1 - summary.busy / untraced.median_seconds;
}

std::string print_summary(const TimelineSummary& s, const UntracedRuns& untraced) {
  std::int64_t tasks = 0;
  for (const LaneSummary& lane : s.lanes) tasks += lane.tasks;
  std::string text;
  auto row = [&](const std::string& what, double seconds, const std::string& more) {
    text += fmt::format("\n  {:22} {:>14} {:6.1f} %  {}", what, milliseconds(seconds), 100 * s.share(seconds), more);
  };
  row("step", s.seconds, fmt::format("{} tasks", tasks));
  for (std::size_t lane = 0; lane < lane_count; ++lane)
    if (is_shown(static_cast<Lane>(lane), static_cast<std::size_t>(s.lanes[lane].tasks)))
      row(fmt::format("lane {}", name_of(static_cast<Lane>(lane))), s.lanes[lane].busy, fmt::format("{} tasks", s.lanes[lane].tasks));
  row("exposed", s.exposed, "another lane is busy, compute is not");
  row("idle", s.idle, "no task is running; gaps inside a task count as busy");
  if (s.graph) text += "\n  traced task by task; other steps are one CUDA graph, which has fewer gaps between tasks";
  const std::optional<double> gaps = launch_gap_share(s, untraced);
  if (!gaps) return text + "\n  no earlier step to compare with: a later run.trace shows launch gaps too";
  text += fmt::format("\n  steps before took {} (median of {}), batch included; outside tasks in them: 1 - {} / that = {:.1f} %",
                      milliseconds(untraced.median_seconds), untraced.count, milliseconds(s.busy), 100 * *gaps);
  return text + (*gaps < 0 ? "\n  less than 0: tasks took longer while they were traced, so this number means nothing" : " or more");
}

}  // namespace tessera
