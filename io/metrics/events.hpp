// events.jsonl: the history of a run over all its starts, a JSON object a line, which is only ever added to. docs/runs.md lists what stands
// in it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"
#include "io/metrics/line_file.hpp"

namespace tessera::io {

struct Event {
  double time = 0;        ///< seconds since 1970
  std::int64_t step = 0;  ///< steps that are done
  std::string event = {};
  Json fields = Json::object();  ///< what else the line holds, by event
};

/// All of them in their order; none where there is no file. Lines that are none are left out: a last one that a kill has cut, or one that
/// is being written. Error(storage) where the file cannot be read.
std::vector<Event> read_events(const std::string& path);
/// The lines of a text as events. `first_is_cut`: it may begin within a line.
std::vector<Event> events_of(std::string_view text, bool first_is_cut = false);
/// Of an event's fields; none where there is no such number, or an empty text.
std::optional<double> field_number(const Json& fields, std::string_view key);
std::string field_text(const Json& fields, std::string_view key);
/// With its end.
std::string line_of(const Event& event);

/// Adds events to a file; see LineFile.
class EventLog {
 public:
  explicit EventLog(const std::string& path) : file_(path, whole_lines) {}
  void write(const Event& event) { file_.write(line_of(event)); }

 private:
  LineFile file_;
};

}  // namespace tessera::io
