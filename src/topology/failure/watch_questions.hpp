// Questions: where all ranks are, and who waits for whom.
#pragma once
#include <condition_variable>
#include <optional>
#include <set>
#include <string>

#include "topology/failure/watch_common.hpp"

namespace tessera {

class WatchQuestions {
 public:
  /// `reached`: whether rank 0 can hear this rank.
  WatchQuestions(WatchCommon& common, bool reached) : common_(common), reached_(reached) {}

  /// What Watch::explain says.
  std::string explain(const std::string& wait);

  // The watch's thread, with the lock held.

  void take_note(const std::string& text);
  void ask_all(int asker);
  void end_when_answered();
  /// The answer for this rank.
  void take_answer(const std::string& text);
  /// A link has ended: rank 0 may never answer.
  void link_ended() { answered_.notify_all(); }

 private:
  WatchCommon& common_;
  const bool reached_;
  std::condition_variable answered_;
  std::set<int> askers_;  ///< waiting for the notes
  double asked_at_ = 0;
  std::optional<std::string> notes_;  ///< the answer for this rank
};

}  // namespace tessera
