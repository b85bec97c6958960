// The traces of one step, as a page draws them: bars by lane, and what each rank did.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.hpp"

namespace tessera {

/// Tasks of a lane that follow each other closely and are of one kind count as one bar.
struct TraceBar {
  double begin = 0, seconds = 0;
  std::size_t kind = 0, name = 0;  ///< of TraceBars' lists
  std::int64_t tasks = 1;
};
struct TraceLane {
  std::string name;
  std::vector<TraceBar> bars;
};
struct TraceBars {
  std::vector<std::string> kinds, names;
  std::vector<TraceLane> lanes;
  double seconds = 0;
  Json json() const;
};

/// Of a rank.
struct RankTimes {
  int rank = 0;
  double seconds = 0;  ///< of its step
  double compute = 0;  ///< in which its compute lane was at work
  double exposed = 0, idle = 0;
  std::vector<std::pair<std::string, double>> kinds = {};  ///< seconds of tasks by kind; of a collective with the wait for others
};

struct StepTraces {
  std::int64_t step = 0;
  std::vector<RankTimes> ranks;
  int shown = 0;  ///< the rank whose bars these are: the one that computed longest
  TraceBars bars;
};

/// Text of a Chrome trace as schedule/trace writes it. Throws JsonError where it is none.
TraceBars bars_of_trace(const std::string& text);
RankTimes times_of_trace(const std::string& text);

/// FOLDER/rank-*.json. What cannot be read is left out with a warning; nothing where no file can.
std::optional<StepTraces> read_traced_step(const std::string& folder, std::int64_t step);

}  // namespace tessera
