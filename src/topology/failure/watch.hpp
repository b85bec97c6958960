// A thread of each process that talks to the other processes beside MPI: who has ended, who waits for whom, and who says so.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "topology/failure/account.hpp"
#include "topology/failure/link.hpp"
#include "topology/failure/whereabouts.hpp"

namespace tessera {

/// Every rank has a link to rank 0, which hears of each end and answers questions. A process that ends without a goodbye closes its link,
/// so all others know within a moment; a stopped one keeps it and does not answer.
class Watch {
 public:
  /// `links`: by rank on rank 0, and one on the others; closed ones are of ranks that could not be reached, of which nothing is known.
  Watch(int rank, std::vector<std::string> hosts, std::vector<Link> links);
  /// Says goodbye: an end from here on is no loss.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  Whereabouts& whereabouts() { return whereabouts_; }
  /// A rank that was lost, -1: none. For handlers of signals too.
  const std::atomic<int>& lost() const { return lost_; }
  const std::string& host(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }

  /// Asks all ranks where they are, and says who waits in `wait` and for whom. Takes a few seconds at most.
  std::string explain(const std::string& wait);
  /// Whether this rank may say why the run ends: the first one that asks may. All others then know that connections will break.
  bool take_floor(int status);

 private:
  struct Member {  ///< what rank 0 knows of a rank
    Note note;
    double heard = 0;  ///< when
    bool asked = false, ended = false;
  };
  void loop();
  void wait_for_events();
  void read_links();
  void handle(int from, const Message& message);
  void link_ended(int from, bool goodbye);
  void begin_question();
  void end_question_when_answered();
  void tell_lost(int rank);
  void grant_floor(int rank, int status);
  void leave_after_others(int status);
  void wake() const;
  int rank_of(std::size_t link) const { return rank_ == 0 ? static_cast<int>(link) : 0; }

  int rank_;
  std::vector<std::string> hosts_;
  Whereabouts whereabouts_;
  std::atomic<int> lost_{-1};
  int wake_ = -1;  // an eventfd

  std::mutex mutex_;  // all below
  std::condition_variable answered_;
  std::vector<Link> links_;
  std::vector<Member> members_;
  std::set<int> askers_;  ///< waiting for the notes
  double asked_at_ = 0;
  std::optional<std::string> notes_;  ///< the answer for this rank
  std::optional<bool> may_speak_;
  bool ending_ = false, stopping_ = false;
  int status_ = 0;                  ///< that the run ends with
  std::optional<double> leave_at_;  ///< then this process ends
  double noted_at_ = 0;
  std::thread thread_;  // last: it uses the others
};

}  // namespace tessera
