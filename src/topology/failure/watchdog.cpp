#include "topology/failure/watchdog.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace tessera {
namespace {

constexpr double longest_steps = 5, least_seconds = 10, least_first_seconds = 60;
constexpr std::size_t most_rows = 32;

/// Without times: those of ranks that are at the same differ.
std::string place_of(const Note& note) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  for (const TaskAt& at : note.work.tasks) add(fmt::format("{}: `{}`", at.lane, at.task));
  for (const auto& [what, seconds] : note.waits) add("waits in " + what);
  if (!note.work.beside.empty()) add(note.work.beside);
  return text.empty() ? "no task" : text;
}

struct StillRow {
  std::vector<int> ranks;
  double seconds = 0;
};

std::vector<int> awaited_of(std::span<const RankNote> notes, const char*& why) {
  std::vector<int> silent, working;
  std::map<std::string, std::vector<int>> by_wait;
  for (const RankNote& rank : notes) {
    if (rank.ended || rank.behind >= 0) continue;
    if (!rank.answered)
      silent.push_back(rank.rank);
    else if (rank.note.waits.empty())
      working.push_back(rank.rank);
    else
      by_wait[rank.note.waits.begin()->first].push_back(rank.rank);
  }
  why = "no longer answers: it is stopped, or its node hangs";
  if (!silent.empty()) return silent;
  why = "waits for no rank itself";
  if (!working.empty()) return working;
  why = "waits in another collective than most";
  if (by_wait.size() < 2) return {};
  return std::ranges::min_element(by_wait, {}, [](const auto& wait) { return wait.second.size(); })->second;
}

}  // namespace

double watchdog_limit(const WatchdogOptions& options, double longest, bool in_program) {
  if (options.limit_seconds > 0) return options.limit_seconds;
  if (!in_program) return options.most_seconds;
  const double least = longest == 0 ? least_first_seconds : least_seconds;
  return std::min(std::max(least, longest_steps * longest), options.most_seconds);
}

std::vector<int> awaited_ranks(std::span<const RankNote> notes) {
  const char* why = "";
  return awaited_of(notes, why);
}

StillRun describe_still(std::span<const RankNote> notes, std::span<const std::string> hosts) {
  StillRun still;
  std::map<std::tuple<std::int64_t, std::string, std::string>, StillRow> rows;
  for (const RankNote& rank : notes) {
    std::string at = place_of(rank.note);
    if (rank.ended) at = "has ended";
    if (!rank.ended && rank.behind >= 0) at = fmt::format("reports through rank {}; last: {}", rank.behind, at);
    if (!rank.ended && rank.behind < 0 && !rank.answered) at = "no answer; last: " + at;
    StillRow& row = rows[{rank.note.work.step, rank.note.work.program, at}];
    row.ranks.push_back(rank.rank);
    row.seconds = std::max(row.seconds, std::max(0.0, rank.note.work.still) + rank.age);
  }
  still.table = fmt::format("\n  {:>8}  {:8}  {:>6}  at", "step", "program", "for");
  std::size_t shown = 0;
  for (const auto& [key, row] : rows) {
    if (++shown > most_rows) {
      still.table += fmt::format("\n  and {} more rows", rows.size() - most_rows);
      break;
    }
    const auto& [step, program, at] = key;
    still.table += fmt::format("\n  {:>8}  {:8}  {:>4.0f} s  {}: {}", step > 0 ? std::to_string(step) : "-",
                               program.empty() ? "-" : program, row.seconds, name_ranks(row.ranks, hosts), at);
  }
  const char* why = "";
  still.awaited = awaited_of(notes, why);
  still.cause = still.awaited.empty() ? "all ranks wait in the same collective, so MPI or the network between them hangs"
                                      : fmt::format("the others wait for {}, which {}", name_ranks(still.awaited, hosts), why);
  return still;
}

}  // namespace tessera
