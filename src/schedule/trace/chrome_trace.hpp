// A timeline in the Chrome trace event format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "schedule/trace/timeline_summary.hpp"

namespace tessera {

/// Whose timeline it is.
struct TraceOrigin {
  std::int64_t step = 0;  ///< 1-based, as people count
  int rank = 0, ranks = 1;
  std::string device = {};  ///< what the kernels worked on: "host", "cuda"
  bool predicted = false;   ///< nothing ran; its process stands apart from measured ones, so that events of both may be joined in one file
  double begin = 0;         ///< seconds from the zero of the file's clock to the begin of the step

  int process() const { return rank + (predicted ? 1000000 : 0); }
};

/// What a task is of, for colours: "forward", "backward", "gather", "reduce", "optimizer" or "step".
const char* kind_of(const Task& task);

/// JSON text: a process for the rank, a row for each lane, a complete event for each task in microseconds; "otherData" holds the summary,
/// in seconds and shares. A line an event, so that the file can be searched by lines.
std::string chrome_trace(const Timeline& timeline, const UntracedRuns& untraced, const TraceOrigin& origin);

/// A row above a process's lanes that says which step is when: {step, begin, seconds}.
struct TracedStep {
  std::int64_t step = 0;
  double begin = 0, seconds = 0;
};

/// One file of several: the texts of chrome_trace that `next` gives, until it gives none, with a row of steps for process 0. `other`: what
/// stands under "otherData".
void join_traces(const std::function<void(std::string_view)>& write, const std::function<std::optional<std::string>()>& next,
                 std::span<const TracedStep> steps, const std::string& other);

}  // namespace tessera
