// What follows where the ranks of a job have ended that its scheduler can start again: the rules of decide.hpp, for slurm/ends.sh.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "supervise/decide.hpp"

namespace tessera {

/// What the lines beside a job's log tell of its starts (record.hpp).
struct JobRecord {
  std::vector<StartEnd> ends = {};
  std::vector<std::string> left_out = {};  ///< nodes that no later start has
};
/// Lines that tell of neither are passed over.
JobRecord read_record(std::string_view text);

struct JobRules {
  int tries = SuperviseRules{}.tries;  ///< starts that saved no newer step
  std::int64_t pause_seconds = 120;  ///< after a loss, and twice as long after each further one: a scheduler sees late that a node is gone
};

/// A scheduler has ended the ranks, of whom none could report: as a shell says SIGTERM.
inline constexpr int ended_by_scheduler = 128 + 15;

struct JobDecision {
  enum class Next { done, ended, again, give_up };
  Next next = Next::done;
  int status = 0;                          ///< of the job, if it is given up
  std::int64_t pause_seconds = 0;          ///< of a job that starts again
  std::vector<std::string> suspects = {};  ///< nodes at which two starts ended: it starts without them, if it can
  std::string words = {};                  ///< what ended, and why it is given up
};

/// The last start of the record is the one that has ended.
JobDecision decide_job(const JobRules& rules, const JobRecord& record);

/// "done", "ended", "again", "give-up"
std::string_view word_of(JobDecision::Next next);

}  // namespace tessera
