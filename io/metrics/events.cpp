#include "io/metrics/events.hpp"

#include <optional>

#include "io/files/path_state.hpp"

namespace tessera::io {
namespace {

std::optional<Event> event_of(std::string_view line) {
  std::optional<Json> json = Json::try_parse(line);
  if (!json || !json->is_object()) return std::nullopt;
  const Json *time = json->find("time"), *step = json->find("step"), *event = json->find("event");
  if (!time || !time->is_number() || !step || !step->is_number_integer() || !event || !event->is_string()) return std::nullopt;
  Event read{.time = time->get<double>(), .step = step->get<std::int64_t>(), .event = event->text()};
  for (const auto& [key, value] : json->items())
    if (key != "time" && key != "step" && key != "event") read.fields[key] = value;
  return read;
}

}  // namespace

std::vector<Event> events_of(std::string_view text, bool first_is_cut) {
  std::vector<Event> events;
  if (first_is_cut) text.remove_prefix(std::min(text.find('\n'), text.size()));
  // What has no end may go on.
  for (std::size_t end = text.find('\n'); end != text.npos; end = text.find('\n')) {
    if (std::optional<Event> event = event_of(text.substr(0, end))) events.push_back(std::move(*event));
    text.remove_prefix(end + 1);
  }
  return events;
}

std::vector<Event> read_events(const std::string& path) {
  if (look_at(path).nothing()) return {};
  const PosixFile file = PosixFile::open(path, ExitCode::storage);
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  text.resize(file.read(0, text.data(), text.size()));
  return events_of(text);
}

std::string line_of(const Event& event) {
  Json json{{"time", event.time}, {"step", event.step}, {"event", event.event}};
  json.update(event.fields);
  return json.dump(-1, BadText::replace) + "\n";
}

std::optional<double> field_number(const Json& fields, std::string_view key) {
  const Json* found = fields.find(key);
  return found && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

std::string field_text(const Json& fields, std::string_view key) {
  const Json* found = fields.find(key);
  return found && found->is_string() ? found->text() : "";
}

}  // namespace tessera::io
