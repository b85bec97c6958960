// Which of all ranks says why the run ends. Rank 0 gives the floor to the first that asks, and to the next if that one is lost.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "topology/failure/watch_common.hpp"

namespace tessera {

class WatchFloor {
 public:
  /// `read_links` reads what has come.
  WatchFloor(WatchCommon& common, std::function<void()> read_links);

  bool ending() const { return floor_.load() != Floor::open; }
  /// This thread reads the links from now on.
  void begins_thread();
  /// What Watch::become_speaker and Watch::has_spoken say.
  bool take(int status);
  void has_spoken();

  // The watch's thread, with the lock held.

  /// Another rank asks for the floor: rank 0's.
  void grant(int rank, int status);
  /// A rank has ended: rank 0's.
  void pass_on(int ended);
  void run_ends(int status, int speaker);
  void take_said();
  /// The same on the way up from a lower rank.
  void pass_said_up(const std::string& text);
  /// The link to the parent has ended.
  void cut_off(bool parent_is_root);
  void serve();
  /// The status to end this process with, if it is time.
  std::optional<int> leaves_with() const;
  /// What rank 0 says because nobody else is left to say it, and the status.
  std::optional<std::pair<int, std::string>> take_last_words();

 private:
  enum class Floor : int { open, mine, others, said };

  void reopen();
  void leave_in(double seconds);
  void serve_own_thread();

  WatchCommon& common_;
  const std::function<void()> read_links_;
  // Between take(), which locks nothing, and the watch's thread.
  std::atomic<Floor> floor_{Floor::open};
  std::atomic<int> wanted_{0};                    ///< the status that this rank wants the floor for
  std::atomic<bool> spoke_{false}, told_{false};  ///< this rank has; and the others will hear of it
  std::atomic<bool> cut_off_{false};              ///< rank 0 cannot answer
  std::atomic<pid_t> thread_id_{0};
  int status_ = 0;                                  ///< that the run ends with
  int speaker_ = -1;                                ///< who has or had the floor
  bool asked_ = false;                              ///< `wanted_` has been sent
  std::vector<std::pair<int, int>> next_speakers_;  ///< rank 0's: those that have asked since, with their statuses
  std::optional<std::string> last_words_;           ///< rank 0's
  std::optional<double> leave_at_;                  ///< then this process ends
};

}  // namespace tessera
