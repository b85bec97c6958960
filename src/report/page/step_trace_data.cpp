#include "report/page/step_trace_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/log.hpp"
#include "io/files/posix_file.hpp"
#include "report/page/reduce.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// Bars nearer than this share of the step are one where they are of a kind: a screen has fewer points.
constexpr double resolution = 1.0 / 3000;
constexpr std::int64_t most_trace_bytes = std::int64_t{1} << 30;

class Words {
 public:
  explicit Words(std::vector<std::string>& list) : list_(list) {}
  std::size_t of(const std::string& word) {
    const auto [at, fresh] = places_.try_emplace(word, list_.size());
    if (fresh) list_.push_back(word);
    return at->second;
  }

 private:
  std::vector<std::string>& list_;
  std::map<std::string, std::size_t> places_;
};

/// "step" is what tasks of no other kind are.
std::string kind_of_event(const Json& event) {
  std::string kind = event["cat"].get<std::string>();
  return kind == "step" ? "other" : kind;
}

bool is_task(const Json& event) { return event.value("ph", "") == "X"; }

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (const std::string name = at->path().filename().string(); name.starts_with("rank-") && name.ends_with(".json"))
      files.push_back(at->path().string());
  std::ranges::sort(files);
  return files;
}

}  // namespace

TraceBars bars_of_trace(const std::string& text) {
  const Json trace = Json::parse(text);
  TraceBars bars;
  bars.seconds = trace["otherData"]["seconds"].get<double>();
  const double zero = trace["otherData"].value("begin_seconds", 0.0);  // of the step, on the clock of all files
  Words kinds(bars.kinds), names(bars.names);
  std::map<std::int64_t, std::string> lane_names;
  std::map<std::int64_t, std::vector<TraceBar>> lanes;
  for (const Json& event : trace["traceEvents"]) {
    const auto lane = event["tid"].get<std::int64_t>();
    if (event.value("name", "") == "thread_name") lane_names[lane] = event["args"]["name"].get<std::string>();
    if (!is_task(event)) continue;
    lanes[lane].push_back({.begin = 1e-6 * event["ts"].get<double>() - zero,
                           .seconds = 1e-6 * event["dur"].get<double>(),
                           .kind = kinds.of(kind_of_event(event)),
                           .name = names.of(event["name"].get<std::string>())});
  }
  const double least = resolution * bars.seconds;
  for (auto& [lane, tasks] : lanes) {
    std::ranges::stable_sort(tasks, {}, &TraceBar::begin);
    std::vector<TraceBar> kept;
    for (const TraceBar& task : tasks) {
      const bool joins = !kept.empty() && kept.back().kind == task.kind && task.begin - (kept.back().begin + kept.back().seconds) < least &&
                         std::min(task.seconds, kept.back().seconds) < least;
      if (!joins) {
        kept.push_back(task);
        continue;
      }
      TraceBar& bar = kept.back();
      if (task.seconds > bar.seconds) bar.name = task.name;
      bar.seconds = std::max(bar.seconds, task.begin + task.seconds - bar.begin);
      ++bar.tasks;
    }
    bars.lanes.push_back({.name = lane_names.contains(lane) ? lane_names[lane] : fmt::format("lane {}", lane), .bars = std::move(kept)});
  }
  return bars;
}

/// Of a lane four lists: begin and length in thousandths of a millisecond, kind and name, and how many tasks.
Json TraceBars::json() const {
  Json out{{"seconds", seconds}, {"kinds", kinds}, {"names", names}, {"lanes", Json::array()}};
  const auto microseconds = [](double s) { return static_cast<std::int64_t>(1e6 * s + 0.5); };
  for (const TraceLane& lane : lanes) {
    Json begin = Json::array(), length = Json::array(), kind = Json::array(), name = Json::array(), tasks = Json::array();
    for (const TraceBar& bar : lane.bars) {
      begin.push_back(microseconds(bar.begin));
      length.push_back(std::max<std::int64_t>(1, microseconds(bar.seconds)));
      kind.push_back(bar.kind), name.push_back(bar.name), tasks.push_back(bar.tasks);
    }
    out["lanes"].push_back({{"name", lane.name}, {"begin", begin}, {"length", length}, {"kind", kind}, {"task", name}, {"tasks", tasks}});
  }
  return out;
}

RankTimes times_of_trace(const std::string& text) {
  const Json trace = Json::parse(text);
  const Json& summary = trace["otherData"];
  RankTimes times{.rank = summary["rank"].get<int>(),
                  .seconds = summary["seconds"].get<double>(),
                  .compute = summary["lanes"].contains("compute") ? summary["lanes"]["compute"]["busy_seconds"].get<double>() : 0,
                  .exposed = summary["exposed_communication_seconds"].get<double>(),
                  .idle = summary["idle_seconds"].get<double>()};
  for (const Json& event : trace["traceEvents"]) {
    if (!is_task(event)) continue;
    const std::string kind = kind_of_event(event);
    auto at = std::ranges::find(times.kinds, kind, &std::pair<std::string, double>::first);
    if (at == times.kinds.end()) at = times.kinds.insert(at, {kind, 0.0});
    at->second += 1e-6 * event["dur"].get<double>();
  }
  return times;
}

std::optional<StepTraces> read_traced_step(const std::string& folder, std::int64_t step) {
  StepTraces traced{.step = step, .ranks = {}, .bars = {}};
  const auto read = [](const std::string& file) { return io::read_small_file(file, ExitCode::storage, most_trace_bytes); };
  std::string longest;
  double most = -1;
  for (const std::string& file : files_of(folder)) {
    try {
      traced.ranks.push_back(times_of_trace(read(file)));
    } catch (const JsonError& error) {
      warning("{}: this is not a trace of a step ({}), and is left out", file, error.what());
      continue;
    }
    if (traced.ranks.back().compute > most) most = traced.ranks.back().compute, longest = file, traced.shown = traced.ranks.back().rank;
  }
  if (longest.empty()) return std::nullopt;
  try {
    traced.bars = bars_of_trace(read(longest));
  } catch (const JsonError& error) {
    warning("{}: its tasks cannot be read ({})", longest, error.what());
    return std::nullopt;
  }
  return traced;
}

}  // namespace tessera
