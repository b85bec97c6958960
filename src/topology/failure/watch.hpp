// A thread of each process that talks to the other processes beside MPI: who has ended, who waits for whom, and who says so.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "topology/failure/account.hpp"
#include "topology/failure/awaited.hpp"
#include "topology/failure/link.hpp"
#include "topology/failure/peer_file.hpp"
#include "topology/failure/stragglers.hpp"
#include "topology/failure/watch_tree.hpp"
#include "topology/failure/watchdog.hpp"
#include "topology/failure/whereabouts.hpp"

namespace tessera {

/// What a rank knows of all others before they talk, by rank.
struct WatchPlan {
  int rank = 0;
  std::vector<std::string> hosts;
  std::vector<int> leaders;  ///< the lowest rank of its node
  std::vector<ProcessName> processes;
  WatchTree tree;
};

/// A rank's connections; closed ones are of ranks that could not be reached.
struct WatchLinks {
  Link up;                 ///< none on rank 0
  std::vector<Link> down;  ///< in the order of the tree's children
};

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

  Whereabouts& whereabouts() { return whereabouts_; }
  /// A rank that was lost, -1: none. For handlers of signals too.
  const std::atomic<int>& lost() const { return lost_; }
  const std::string& host(int rank) const { return plan_.hosts[static_cast<std::size_t>(rank)]; }

  /// Asks all ranks where they are, and says who waits in `wait` and for whom. Takes a few seconds at most.
  std::string explain(const std::string& wait);
  /// Whether this rank is to say why the run ends: the first one that asks is, and one of those that wait where that one is lost before it
  /// has said it. All others then know that connections will break. For handlers of signals too. Takes a few seconds at most.
  bool take_floor(int status);
  /// It has said it: the others may end.
  void has_spoken();

  /// From now on a run that stands still is said to, and by whose fault: by rank 0, and where that one does not answer by a rank below it.
  /// `end` is called then where the options say so, on the watch's thread, with the cause.
  void watch_progress(const WatchdogOptions& options, std::function<void(const std::string&)> end);
  /// Ranks that were found to be slow since the last call, on rank 0. Costs a look where there are none.
  std::vector<Straggler> take_stragglers();
  /// Whom the others have waited for since `begin` of now_seconds(), on rank 0.
  AwaitedRanks awaited_since(double begin);
  /// What each rank has said last of what it has computed, on rank 0.
  std::vector<Spent> spent_of_ranks();

 private:
  enum class Floor : int { open, mine, others, said };
  struct Member {  ///< what rank 0 knows of a rank
    Note note;
    double heard = 0;  ///< when
    bool asked = false, ended = false, reached = true;
  };
  /// A still run that is about to be said: stacks are being read.
  struct StillReport {
    double begun = 0, still = 0, limit = 0;
    StillRun run;
    std::map<int, std::string> stacks;  ///< of the ranks that were asked for; empty until they come
  };
  /// A line that waits until nothing is locked.
  struct WatchLine {
    std::string text, cause;
    bool warns = true;
  };

  // watch.cpp: links and messages
  void loop();
  void wait_for_events();
  void read_links();
  void handle(int from, const Message& message);
  void link_ended(int from, bool goodbye);
  void note_regularly();
  void wake() const;
  std::size_t link_count() const { return links_.down.size() + 1; }
  Link& link(std::size_t i) { return i < links_.down.size() ? links_.down[i] : links_.up; }
  int neighbour(std::size_t i) const;
  void send_up(MessageKind kind, const std::string& text);
  void send_down(MessageKind kind, const std::string& text);
  void send_to(int rank, MessageKind kind, const std::string& text);

  // watch_words.cpp: losses, questions
  void tell_lost(int rank, int from);
  void take_note(const std::string& text);
  void ask_all(int asker);
  void end_question_when_answered();
  /// Who has answered the question under way, or by `silent_after` who has sent a note in so many seconds.
  std::vector<RankNote> notes(std::optional<double> silent_after) const;

  // watch_floor.cpp: who says why the run ends
  bool ending() const { return floor_.load() != Floor::open; }
  void grant_floor(int rank, int status);
  void pass_floor_on(int ended);
  void reopen_floor();
  void run_ends(int status, int speaker);
  void take_said();
  void leave_in(double seconds);
  void serve_floor();
  void serve_own_thread();

  // watch_progress.cpp: a run that stands still
  void judge_progress();
  void judge_root();
  double seconds_still() const;
  void note_awaited(double now, double gap);
  void compare_ranks();
  void begin_report(double still, double limit);
  void end_report_when_read();
  void look_at(int rank);
  void read_stacks_of(int rank);
  void send_stacks_that_were_read();
  void take_stacks(const std::string& text);

  WatchPlan plan_;
  int rank_;
  Whereabouts whereabouts_;
  std::atomic<int> lost_{-1};
  int wake_ = -1;  // an eventfd
  // Between take_floor, which locks nothing, and the watch's thread.
  std::atomic<Floor> floor_{Floor::open};
  std::atomic<int> wanted_{0};                    ///< the status that this rank wants the floor for
  std::atomic<bool> spoke_{false}, told_{false};  ///< this rank has; and the others will hear of it
  std::atomic<bool> cut_off_{false};              ///< rank 0 cannot answer
  std::atomic<pid_t> thread_id_{0};

  std::mutex mutex_;  // all below
  std::condition_variable answered_;
  WatchLinks links_;
  std::vector<Member> members_;  ///< rank 0's
  bool reached_ = true;
  std::set<int> askers_;  ///< waiting for the notes
  double asked_at_ = 0;
  std::optional<std::string> notes_;  ///< the answer for this rank
  bool stopping_ = false;
  int status_ = 0;                                  ///< that the run ends with
  int speaker_ = -1;                                ///< who has or had the floor
  bool asked_floor_ = false;                        ///< `wanted_` has been sent
  std::vector<std::pair<int, int>> next_speakers_;  ///< rank 0's: those that have asked since, with their statuses
  std::optional<std::string> last_words_;           ///< rank 0's, where nobody else is left to say them
  std::optional<double> leave_at_;                  ///< then this process ends
  double noted_at_ = 0, heard_up_ = 0;

  WatchdogOptions watchdog_;
  std::function<void(const std::string&)> end_;
  double judged_at_ = 0, judged_from_ = 0;  ///< time in which this process did not run does not count
  std::optional<double> still_since_;       ///< and said to be
  std::optional<StillReport> report_;
  std::vector<WatchLine> sayings_;
  AwaitedLog awaited_;     ///< rank 0's
  double awaited_at_ = 0;  ///< when it was looked at last
  Stragglers stragglers_;
  std::vector<Straggler> slow_;  ///< not yet taken
  std::atomic<bool> slow_found_{false};
  int reading_ = -1;  ///< the rank whose stacks are being read
  std::vector<int> to_read_;
  std::optional<std::string> read_;
  std::thread reader_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace tessera
