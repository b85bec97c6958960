#include "supervise/run_tail.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string_view>

#include "base/json.hpp"

namespace tessera {
namespace {

/// The last whole line of a file's last 256 KiB that is taken; false where none is.
bool take_last_line(const std::string& path, const std::function<bool(const Json&)>& take) {
  constexpr std::streamoff most = 256 << 10;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;  // a pipe would be waited for
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return false;
  const std::streamoff size = file.tellg(), from = std::max<std::streamoff>(0, size - most);
  std::string text(static_cast<std::size_t>(size - from), '\0');
  file.seekg(from);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  std::string_view rest(text);
  rest = rest.substr(0, std::min(rest.rfind('\n'), rest.size()));
  while (!rest.empty()) {
    const std::size_t at = rest.rfind('\n');
    const std::string_view line = at == rest.npos ? rest : rest.substr(at + 1);
    rest = at == rest.npos ? std::string_view() : rest.substr(0, at);
    if (const auto row = Json::try_parse(line); row && row->is_object() && take(*row)) return true;
  }
  return false;
}

}  // namespace

std::optional<LastStep> last_step(const std::string& run_folder) {
  LastStep last;
  const bool found = take_last_line(run_folder + "/metrics.jsonl", [&](const Json& row) {
    if (!row.contains("loss") || !row.contains("step") || !row.contains("time")) return false;
    last = {.step = row.value<std::int64_t>("step", 0), .time = row.value<double>("time", 0)};
    return true;
  });
  return found ? std::optional(last) : std::nullopt;
}

std::optional<std::int64_t> steps_again(const std::string& run_folder, double since) {
  std::optional<std::int64_t> steps;
  take_last_line(run_folder + "/events.jsonl", [&](const Json& row) {
    if (row.value("event", "") != "start") return false;
    if (row.value<double>("time", 0) >= since) steps = row.value<std::int64_t>("lost_steps", 0);
    return true;
  });
  return steps;
}

}  // namespace tessera
