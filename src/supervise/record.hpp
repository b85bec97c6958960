// What is told of the starts of a run: lines of the record beside it, and the table.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "supervise/decide.hpp"

namespace tessera {

/// A start, with what its end cost. Seconds are empty where they are not known.
struct SupervisedStart {
  int number = 1;
  RankPlaces places = {};
  std::optional<StartEnd> end = {};              ///< nothing while it runs
  std::optional<double> since_step = {};         ///< from its last step to the end of its launcher
  std::optional<double> to_start = {};           ///< from there to the next start
  std::optional<double> to_step = {};            ///< from there to that one's first step
  std::optional<std::int64_t> steps_again = {};  ///< that the next start did once more
  std::optional<double> seconds_lost() const;    ///< from step to step
};

/// "2026-01-31 12:00:00 WORDS", a line.
std::string record_line(const std::string& words);
/// "start 1: status 76, saved 40"
std::string words_of_end(const SupervisedStart& start);
/// "start 1: lost n3 2 Killed"; empty where no node was named.
std::string words_of_loss(const SupervisedStart& start);

std::string print_starts(const std::vector<SupervisedStart>& starts);
Json starts_json(const std::vector<SupervisedStart>& starts, int status);

}  // namespace tessera
