// Calls the command of run.notify when a run ends, stalls or goes back. On rank 0; a process of its own waits for the command, and outlives
// this one where that is killed.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.hpp"

namespace tessera {

class RunNotices {
 public:
  /// Hears all and does nothing until it has begun.
  RunNotices() = default;
  ~RunNotices();
  RunNotices(const RunNotices&) = delete;
  RunNotices& operator=(const RunNotices&) = delete;

  /// `command`: of /bin/sh, "" for none; it may take `limit` seconds. `run`: what every object holds of the run.
  void begin(const std::string& command, std::int64_t limit, Json run);
  /// One line of JSON for the command: never waits.
  void tell(std::string_view event, std::int64_t step, Json fields);
  /// Says what the command's process has said of a call that failed: once. Costs a call of the system.
  void look();
  /// The same as tell("end"), once. Waits for the call, as long as a call may take.
  void end(std::int64_t step, const std::string& reason, int status);

 private:
  void start();
  void wait_for_calls();
  std::string command_;
  std::int64_t limit_ = 0;
  Json run_ = Json::object();
  int socket_ = -1;
  pid_t process_ = 0;
  std::string said_;  ///< by the process, of a line that has not ended
  bool failed_ = false, ended_ = false;
};

}  // namespace tessera
