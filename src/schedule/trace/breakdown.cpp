#include "schedule/trace/breakdown.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace tessera {
namespace {

TimePart part_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_gather:
      return TimePart::all_gather;
    case CollectiveKind::reduce_scatter:
      return TimePart::reduce_scatter;
    case CollectiveKind::all_reduce:
      return TimePart::all_reduce;
    case CollectiveKind::all_to_all:
      return TimePart::all_to_all;
    case CollectiveKind::rotate:
      return TimePart::rotate;
  }
  return TimePart::other;
}

/// What lanes of copies are for whatever they do.
std::optional<TimePart> part_of(Lane lane) {
  switch (lane) {
    case Lane::upload:
      return TimePart::upload;
    case Lane::download:
      return TimePart::download;
    case Lane::disk_read:
      return TimePart::disk_read;
    case Lane::disk_write:
      return TimePart::disk_write;
    case Lane::snapshot:
    case Lane::host_snapshot:
      return TimePart::snapshot;
    default:
      return std::nullopt;
  }
}

constexpr std::size_t index(TimePart part) { return static_cast<std::size_t>(part); }

/// Bytes of the tensor of which a task moves its rank's part: of n ranks each moves (n - 1) / n of it, and of a sum that all get twice
/// that.
double whole_bytes(const Task& task, const Mesh& mesh) {
  const auto* collective = std::get_if<Collective>(&task.op);
  if (!collective) return task.bytes_moved;
  double ranks = 1;
  for (const Axis axis : all_axes)
    if (contains(collective->axes, axis)) ranks *= mesh.size(axis);
  if (ranks == 1) return 0;
  const double times = collective->kind == CollectiveKind::all_reduce ? 2 : 1;
  return task.bytes_moved * ranks / (ranks - 1) / times;
}

/// One lane's tasks while time goes on.
struct LaneCursor {
  const std::vector<TaskTime>* tasks = nullptr;
  std::size_t next = 0;
  /// The task at work in the interval that begins here; null: none is.
  const TaskTime* at(double begin) {
    while (next < tasks->size() && (*tasks)[next].end <= begin) ++next;
    return next < tasks->size() && (*tasks)[next].begin <= begin ? &(*tasks)[next] : nullptr;
  }
};

}  // namespace

TimePart part_of(const Task& task, const Schedule& schedule) {
  if (const std::optional<TimePart> part = part_of(task.lane)) return *part;
  if (const auto* collective = std::get_if<Collective>(&task.op)) return part_of(collective->kind);
  if (std::holds_alternative<Transfer>(task.op)) return TimePart::pipeline;
  if (std::holds_alternative<OptimizerStep>(task.op) || std::holds_alternative<Orthogonalize>(task.op) ||
      std::holds_alternative<BalanceRouters>(task.op))
    return TimePart::optimizer;
  const auto* run = std::get_if<RunPass>(&task.op);
  if (!run) return TimePart::other;
  const SegmentPass& pass = schedule.passes[static_cast<std::size_t>(run->pass)];
  if (schedule.segment_of(pass).joint) return TimePart::head;
  return run->kind == PassKind::forward ? TimePart::forward : TimePart::backward;
}

void Breakdown::add(const Breakdown& other) {
  seconds += other.seconds, idle += other.idle;
  for (std::size_t i = 0; i < time_part_count; ++i) {
    parts[i].exposed += other.parts[i].exposed;
    parts[i].hidden += other.parts[i].hidden;
    parts[i].bytes_moved += other.parts[i].bytes_moved;
    parts[i].bytes_whole += other.parts[i].bytes_whole;
    parts[i].tasks += other.parts[i].tasks;
  }
}

Breakdown break_down(const Timeline& timeline, const Schedule& schedule, const Mesh& mesh) {
  Breakdown sum{.seconds = timeline.seconds};
  std::vector<double> cuts = {0, timeline.seconds};
  std::vector<LaneCursor> lanes;  // compute first
  for (const std::vector<TaskTime>& tasks : timeline.lanes) {
    if (tasks.empty()) continue;
    lanes.push_back({.tasks = &tasks});
    for (const TaskTime& task : tasks) {
      cuts.push_back(task.begin), cuts.push_back(task.end);
      PartSeconds& part = sum.parts[index(part_of(*task.task, schedule))];
      part.hidden += task.end - task.begin;  // all of it, of which what is exposed is taken below
      part.bytes_moved += task.task->bytes_moved;
      part.bytes_whole += whole_bytes(*task.task, mesh);
      ++part.tasks;
    }
  }
  std::ranges::sort(cuts);
  const bool computes = !timeline.lanes[static_cast<std::size_t>(Lane::compute)].empty();
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const double length = cuts[i + 1] - cuts[i];
    if (length <= 0) continue;
    std::optional<TimePart> whose;
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      const TaskTime* task = lanes[lane].at(cuts[i]);
      if (!task) continue;
      const TimePart part = part_of(*task->task, schedule);
      if (!whose || part < *whose) whose = part;
      if (lane == 0 && computes) break;
    }
    if (whose)
      sum.parts[index(*whose)].exposed += length;
    else
      sum.idle += length;
  }
  for (PartSeconds& part : sum.parts) part.hidden = std::max(0.0, part.hidden - part.exposed);
  return sum;
}

std::string print_breakdown(const Breakdown& sum, double steps, double seconds, double data) {
  std::string text = fmt::format("\n  {:16} {:>12} {:>8} {:>12} {:>8} {:>12} {:>14} {:>14}", "", "exposed", "of step", "hidden", "tasks",
                                 "bytes", "bus", "algorithm");
  const auto row = [&](std::string_view name, double exposed, const std::string& more) {
    text += fmt::format("\n  {:16} {:>9.3f} ms {:>6.1f} %{}", name, 1e3 * exposed, seconds > 0 ? 100 * exposed / seconds : 0, more);
  };
  for (const TimePartRow& part : time_parts) {
    const PartSeconds& of = sum.of(part.part);
    const double busy = of.exposed + of.hidden;
    if (busy == 0) continue;
    std::string more = fmt::format(" {:>9.3f} ms", 1e3 * of.hidden / steps);
    if (part.moves && of.bytes_moved > 0) {
      more += fmt::format(" {:>8.0f} {:>12} {:>12}/s", static_cast<double>(of.tasks) / steps, human_bytes(of.bytes_moved / steps),
                          human_bytes(of.bytes_moved / busy));
      if (of.bytes_whole != of.bytes_moved) more += fmt::format(" {:>12}/s", human_bytes(of.bytes_whole / busy));
    }
    row(part.name, of.exposed / steps, more);
  }
  row("waits", sum.idle / steps, "                no task of this rank at work");
  row("data", data, "                the reading of the batch");
  row("host", std::max(0.0, seconds - data - sum.seconds / steps), "                the rest of a step");
  row("step", seconds, "");
  return text;
}

}  // namespace tessera
