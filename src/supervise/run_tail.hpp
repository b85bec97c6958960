// The end of what a run has written so far: its last step, and what its last start found.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace tessera {

struct LastStep {
  std::int64_t step = 0;
  double time = 0;  ///< unix_seconds() as it was done
};
/// Of the last whole row of metrics.jsonl; nothing where there is none.
std::optional<LastStep> last_step(const std::string& run_folder);
/// The steps that the run's last start does once more, of its row in events.jsonl; nothing where that began before `since`, of
/// unix_seconds().
std::optional<std::int64_t> steps_again(const std::string& run_folder, double since);

}  // namespace tessera
