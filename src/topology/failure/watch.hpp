// A thread of each process that talks to the other processes beside MPI: who has ended, who waits for whom, and who says so.
#pragma once
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "topology/failure/watch_floor.hpp"
#include "topology/failure/watch_progress.hpp"
#include "topology/failure/watch_questions.hpp"

namespace tessera {

/// Every rank has a link to its parent in a tree, whose root, rank 0, hears of each end and answers questions. A process that ends without
/// a goodbye closes its links, so all others know within a moment; a stopped one keeps them and does not answer.
class Watch {
 public:
  /// `unreached`: ranks that rank 0 cannot hear, of which nothing is known.
  Watch(WatchPlan plan, WatchLinks links, std::vector<int> unreached);
  /// Says goodbye: an end from here on is no loss.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  Whereabouts& whereabouts() { return common_.whereabouts; }
  /// A rank that was lost, -1: none. For handlers of signals too.
  const std::atomic<int>& lost() const { return common_.lost; }
  const std::string& host(int rank) const { return common_.host(rank); }

  /// Asks all ranks where they are, and says who waits in `wait` and for whom. Takes a few seconds at most.
  std::string explain(const std::string& wait) { return questions_.explain(wait); }
  /// Whether this rank is to say why the run ends: the first one that asks is, and one of those that wait where that one is lost before it
  /// has said it. All others then know that connections will break. For handlers of signals too. Takes a few seconds at most.
  bool become_speaker(int status) { return floor_.take(status); }
  /// It has said it: the others may end.
  void has_spoken() { floor_.has_spoken(); }

  /// From now on a run that stands still is said to, and by whose fault: by rank 0, and where that one does not answer by a rank below it.
  /// `end` is called then where the options say so, on the watch's thread, with the cause.
  void watch_progress(const WatchdogOptions& options, std::function<void(const std::string&)> end) {
    progress_.begin(options, std::move(end));
  }
  /// Ranks that were found to be slow since the last call, on rank 0. Costs a look where there are none.
  std::vector<Straggler> take_stragglers() { return progress_.take_stragglers(); }
  /// Whom the others have waited for since `begin` of now_seconds(), on rank 0.
  AwaitedRanks awaited_since(double begin) { return progress_.awaited_since(begin); }
  /// What each rank has said last of what it has computed, on rank 0.
  std::vector<Spent> spent_of_ranks() { return progress_.spent_of_ranks(); }

 private:
  void loop();
  void wait_for_events();
  void read_links();
  void handle(int from, const Message& message);
  void link_ended(int from, bool goodbye);
  void note_regularly();
  void tell_lost(int rank, int from);

  WatchCommon common_;
  WatchFloor floor_;
  WatchQuestions questions_;
  WatchProgress progress_;
  bool stopping_ = false;
  double noted_at_ = 0;
  std::thread thread_;  // last: it uses the others
};

}  // namespace tessera
