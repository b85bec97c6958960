#include "schedule/trace/chrome_trace.hpp"

#include "base/check.hpp"
#include "base/json.hpp"

namespace tessera {
namespace {

constexpr const char* opening = "{\"traceEvents\": [\n";
constexpr const char* closing = "],\n\"displayTimeUnit\": \"ms\",\n\"otherData\": ";

/// The name of the process or of a lane's row, and where it stands.
void append_names(std::string& text, const Timeline& timeline, const TraceOrigin& origin) {
  auto line = [&](const char* what, int row, Json arguments) {
    text += Json{{"name", what}, {"ph", "M"}, {"pid", origin.process()}, {"tid", row}, {"args", std::move(arguments)}}.dump() + ",\n";
  };
  line("process_name", 0, {{"name", fmt::format("rank {} of {}{}", origin.rank, origin.ranks, origin.predicted ? ", predicted" : "")}});
  line("process_sort_index", 0, {{"sort_index", origin.process()}});
  for (int lane = 0; lane < lane_count; ++lane) {
    if (!is_shown(static_cast<Lane>(lane), timeline.lanes[static_cast<std::size_t>(lane)].size())) continue;
    line("thread_name", lane, {{"name", name_of(static_cast<Lane>(lane))}});
    line("thread_sort_index", lane, {{"sort_index", lane}});
  }
}

Json event_of(const TaskTime& time, int lane, const TraceOrigin& origin) {
  const Task& task = *time.task;
  Json arguments{{"flops", task.flops}, {"bytes_moved", task.bytes_moved}};
  if (time.micro_batch) arguments["micro_batch"] = *time.micro_batch;
  return {{"name", task.name},
          {"cat", kind_of(task)},
          {"ph", "X"},
          {"pid", origin.process()},
          {"tid", lane},
          {"ts", 1e6 * (origin.begin + time.begin)},
          {"dur", 1e6 * (time.end - time.begin)},
          {"args", std::move(arguments)}};
}

Json summary_json(const TimelineSummary& s, const UntracedRuns& untraced, const TraceOrigin& origin) {
  Json lanes;
  for (std::size_t lane = 0; lane < lane_count; ++lane)
    if (is_shown(static_cast<Lane>(lane), static_cast<std::size_t>(s.lanes[lane].tasks)))
      lanes[name_of(static_cast<Lane>(lane))] = {{"tasks", s.lanes[lane].tasks},
                                                 {"busy_seconds", s.lanes[lane].busy},
                                                 {"busy_share", s.share(s.lanes[lane].busy)},
                                                 {"flops", s.lanes[lane].flops},
                                                 {"bytes_moved", s.lanes[lane].bytes_moved}};
  Json out{{"step", origin.step},
           {"rank", origin.rank},
           {"ranks", origin.ranks},
           {"device", origin.device},
           {"predicted", origin.predicted},
           {"begin_seconds", origin.begin},
           {"seconds", s.seconds},
           {"lanes", std::move(lanes)},
           {"busy_seconds", s.busy},
           {"exposed_communication_seconds", s.exposed},
           {"exposed_communication_share", s.share(s.exposed)},
           {"idle_seconds", s.idle},
           {"idle_share", s.share(s.idle)},
           {"other_steps_are_a_cuda_graph", s.graph}};
  out["steps_before"] = {{"count", untraced.count}};
  if (const auto gaps = launch_gap_share(s, untraced)) {
    out["steps_before"]["median_seconds"] = untraced.median_seconds;
    out["launch_gap_share"] = *gaps;
  }
  return out;
}

}  // namespace

const char* kind_of(const Task& task) {
  if (const auto* run = std::get_if<RunPass>(&task.op)) {
    switch (run->kind) {
      case PassKind::forward:
        return "forward";
      case PassKind::again:
        return "recompute";
      case PassKind::backward:
        return "backward";
      case PassKind::weights:
        return "weight gradients";
    }
  }
  if (info_of(task.lane).collective) return name_of(task.lane);
  return std::holds_alternative<OptimizerStep>(task.op) ? "optimizer" : "step";
}

void join_traces(const std::function<void(std::string_view)>& write, const std::function<std::optional<std::string>()>& next,
                 std::span<const TracedStep> steps, const std::string& other) {
  // Above the lanes, whose rows are 0 and more.
  constexpr int row_of_steps = lane_count;
  std::string text = opening;
  const auto line = [&](const Json& event) { text += event.dump() + ",\n"; };
  line({{"name", "thread_name"}, {"ph", "M"}, {"pid", 0}, {"tid", row_of_steps}, {"args", {{"name", "steps"}}}});
  line({{"name", "thread_sort_index"}, {"ph", "M"}, {"pid", 0}, {"tid", row_of_steps}, {"args", {{"sort_index", -1}}}});
  for (const TracedStep& s : steps)
    line({{"name", fmt::format("step {}", s.step)},
          {"cat", "steps"},
          {"ph", "X"},
          {"pid", 0},
          {"tid", row_of_steps},
          {"ts", 1e6 * s.begin},
          {"dur", 1e6 * s.seconds}});
  while (const std::optional<std::string> file = next()) {
    // A part is written when it is known that another follows: only then does its last event have a comma behind it.
    write(text);
    const std::size_t begin = file->find(opening) + std::string_view(opening).size(), end = file->rfind(closing);
    TESSERA_REQUIRE(file->starts_with(opening) && end != file->npos, "a trace to be joined is not one");
    text = file->substr(begin, end - begin);
    if (text.ends_with("\n")) text.pop_back();
    if (!text.empty()) text += ",\n";
  }
  text.erase(text.size() - 2, 1);  // the last comma
  write(text + closing + other + "}\n");
}

std::string chrome_trace(const Timeline& timeline, const UntracedRuns& untraced, const TraceOrigin& origin) {
  std::string text = opening;
  append_names(text, timeline, origin);
  for (int lane = 0; lane < lane_count; ++lane)
    for (const TaskTime& task : timeline.lanes[static_cast<std::size_t>(lane)]) text += event_of(task, lane, origin).dump() + ",\n";
  text.erase(text.size() - 2, 1);  // the last comma
  return text + closing + summary_json(summarise(timeline), untraced, origin).dump(1) + "}\n";
}

}  // namespace tessera
