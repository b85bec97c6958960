// Which figures of a run are drawn together, and their numbers as a page's script reads them.
#pragma once
#include <string>
#include <vector>

#include "base/json.hpp"
#include "report/page/run_history.hpp"

namespace tessera {

struct Chart {
  std::string id, title, unit;
  std::vector<std::pair<std::string, std::string>> series;  ///< a column, and what it is called
  bool stacked = false, logarithmic = false;
  bool clipped = false;     ///< few steps far above the others may not flatten it
  std::string absent = {};  ///< what records it, where no column has a number
  std::string help = {};
};

/// All of them; those without a column say what records it, or are left out where nobody would look for them.
std::vector<Chart> charts_of(const RunHistory& run);

/// As a page's script reads them.
Json charts_json(const std::vector<Chart>& charts);

/// A point a bucket of rows: at most so many numbers in all, and at most so many points a column.
inline constexpr std::size_t most_points = 2000, most_numbers = 240'000;

/// JSON text: {"step": [...], "time": [...], "columns": {NAME: {"mean": [...], "low": [...], "high": [...]}}, "evaluations": ...}. Without
/// low and high where each row is a point of its own. `time`: s since the first row.
std::string chart_numbers(const RunHistory& run, const std::vector<Chart>& charts);

}  // namespace tessera
