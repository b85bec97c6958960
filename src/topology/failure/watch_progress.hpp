// A run that stands still: seen by rank 0, or by a rank below it if rank 0 does not answer; said once, with the stacks of the ranks that
// the others wait for. Slow ranks are found on the way.
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "topology/failure/awaited.hpp"
#include "topology/failure/stragglers.hpp"
#include "topology/failure/watch_common.hpp"
#include "topology/failure/watchdog.hpp"

namespace tessera {

class WatchProgress {
 public:
  explicit WatchProgress(WatchCommon& common) : common_(common) {}
  ~WatchProgress();
  WatchProgress(const WatchProgress&) = delete;
  WatchProgress& operator=(const WatchProgress&) = delete;

  // What the functions of Watch with these names say.

  void begin(const WatchdogOptions& options, std::function<void(const std::string&)> end);
  std::vector<Straggler> take_stragglers();
  AwaitedRanks awaited_since(double begin);
  std::vector<Spent> spent_of_ranks();

  // The watch's thread, with the lock held.

  /// Something has come from the parent.
  void heard_up() { heard_up_ = now_seconds(); }
  /// `ending`: somebody is to say why the run ends.
  void judge(bool ending);
  void compare_ranks();
  void read_stacks_of(int rank);
  void send_stacks_that_were_read();
  void take_stacks(const std::string& text);
  std::vector<WatchLine> take_lines() { return std::exchange(lines_, {}); }
  /// What ends the run with the cause, if the options say so.
  std::function<void(const std::string&)> end() const { return options_.ends ? end_ : nullptr; }

 private:
  /// A still run that is about to be said: stacks are being read.
  struct Report {
    double begun = 0, still = 0, limit = 0;
    StillRun run;
    std::map<int, std::string> stacks;  ///< of the ranks that were asked for; empty until they come
  };

  void judge_root();
  double seconds_still() const;
  void note_awaited(double now, double gap);
  void begin_report(double still, double limit);
  void end_report_when_read();
  void look_at(int rank);

  WatchCommon& common_;
  WatchdogOptions options_;
  std::function<void(const std::string&)> end_;
  double heard_up_ = now_seconds();
  double judged_at_ = 0, judged_from_ = 0;  ///< time in which this process did not run does not count
  std::optional<double> still_since_;       ///< and said to be
  std::optional<Report> report_;
  std::vector<WatchLine> lines_;
  AwaitedLog awaited_;     ///< rank 0's
  double awaited_at_ = 0;  ///< when it was looked at last
  Stragglers stragglers_;
  std::vector<Straggler> slow_;  ///< not yet taken
  std::atomic<bool> slow_found_{false};
  int reading_ = -1;  ///< the rank whose stacks are being read
  std::vector<int> to_read_;
  std::optional<std::string> read_;
  std::thread reader_;
};

}  // namespace tessera
