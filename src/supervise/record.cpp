#include "supervise/record.hpp"

#include <fmt/format.h>

#include <array>
#include <ctime>

#include "base/error.hpp"

namespace tessera {
namespace {

std::string saved_text(const StartEnd& end) { return end.saved ? fmt::format("{}", *end.saved) : "nothing"; }

std::string seconds_cell(const std::optional<double>& seconds) { return seconds ? fmt::format("{:.2f}", *seconds) : "-"; }

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

std::string cause_text(const StartEnd& end) {
  const std::string lost = end.lost ? name_of(*end.lost) : "";
  switch (static_cast<ExitCode>(end.status)) {
    case ExitCode::ok:
      return "done";
    case ExitCode::interrupted:
      return "asked to stop";
    case ExitCode::lost:
      return lost.empty() ? "lost a rank or a node, or waited too long" : "lost " + lost;
    default:
      return "a fault, which would repeat";
  }
}

}  // namespace

std::optional<double> SupervisedStart::seconds_lost() const {
  if (!since_step || !to_start || !to_step) return std::nullopt;
  return *since_step + *to_start + *to_step;
}

std::string record_line(const std::string& words) {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  localtime_r(&now, &local);
  std::array<char, 32> text = {};
  std::strftime(text.data(), text.size(), "%F %T", &local);
  return fmt::format("{} {}\n", text.data(), words);
}

std::string words_of_end(const SupervisedStart& start) {
  return fmt::format("start {}: status {}, saved {}", start.number, start.end->status, saved_text(*start.end));
}

std::string words_of_loss(const SupervisedStart& start) {
  if (!start.end->lost || start.end->lost->node.empty()) return "";
  const LostPlace& lost = *start.end->lost;
  return fmt::format("start {}: lost {} {} {}", start.number, lost.node, lost.rank, lost.way);
}

std::string print_starts(const std::vector<SupervisedStart>& starts) {
  std::string text = fmt::format("{:>5} {:>6} {:>6} {:>9} {:>10} {:>9} {:>10} {:>6}  {}\n", "start", "ranks", "status", "saved",
                                 "to its end", "restart", "first step", "again", "what ended it");
  double lost = 0;
  for (const SupervisedStart& start : starts) {
    if (!start.end) continue;
    lost += start.seconds_lost().value_or(0);
    text += fmt::format("{:5} {:6} {:6} {:>9} {:>10} {:>9} {:>10} {:>6}  {}\n", start.number, start.places.ranks, start.end->status,
                        saved_text(*start.end), seconds_cell(start.since_step), seconds_cell(start.to_start), seconds_cell(start.to_step),
                        start.steps_again ? fmt::format("{}", *start.steps_again) : "-", cause_text(*start.end));
  }
  return text + fmt::format("{} start{}, {:.2f} s lost between a last step and the next first one\n", starts.size(),
                            starts.size() == 1 ? "" : "s", lost);
}

Json starts_json(const std::vector<SupervisedStart>& starts, int status) {
  Json rows = Json::array();
  double lost = 0;
  for (const SupervisedStart& start : starts) {
    if (!start.end) continue;
    const StartEnd& end = *start.end;
    lost += start.seconds_lost().value_or(0);
    Json row = {{"start", start.number},
                {"ranks", start.places.ranks},
                {"nodes", Json(start.places.nodes)},
                {"status", end.status},
                {"saved", or_null(end.saved)},
                {"cause", cause_text(end)},
                {"seconds_from_last_step", or_null(start.since_step)},
                {"seconds_to_start", or_null(start.to_start)},
                {"seconds_to_first_step", or_null(start.to_step)},
                {"steps_again", or_null(start.steps_again)}};
    if (end.lost) row["lost"] = {{"node", end.lost->node}, {"rank", end.lost->rank}, {"way", end.lost->way}};
    rows.push_back(std::move(row));
  }
  return {{"status", status}, {"starts", std::move(rows)}, {"seconds_lost", lost}};
}

}  // namespace tessera
