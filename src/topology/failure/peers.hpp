// Whether the other processes of this node are alive.
#pragma once
#include <atomic>
#include <optional>
#include <vector>

#include "topology/failure/mpi.hpp"

namespace tessera {

class NodeFloor;
class Watch;
class Whereabouts;

/// Watches the processes of a node's ranks. A launcher may leave the others alone when one dies (srun's default), and MPI does not notice.
class Peers {
 public:
  Peers() = default;
  /// Collective over the ranks of a node.
  Peers(MPI_Comm node, int world_rank);
  ~Peers();
  Peers(Peers&& other) noexcept { *this = std::move(other); }
  Peers& operator=(Peers&& other) noexcept;

  /// By local rank. False also where it cannot be known: a process in another PID namespace has no name here.
  bool has_ended(int local_rank) const;
  /// The world rank of a process that has ended, of several one that was lost: of this node, or of any where there is a watch.
  std::optional<int> ended_rank() const;
  /// A rank that ended without a goodbye, where there is a watch: others may end as they should.
  std::optional<int> unexpected_end() const;

  /// Over all ranks; null: none. It must stay until a call with null.
  void set_watch(Watch* watch);
  Watch* watch() const { return watch_; }
  /// Where waits are noted; null without a watch.
  Whereabouts* whereabouts() const;
  /// "rank 5", and its host where a watch knows it: "rank 5 on n2".
  std::string name(int world_rank) const;

  /// Takes a floor and a mark for each local rank, all zero, in memory that the node's ranks share; null: there is none.
  void share(NodeFloor* floor, std::atomic<bool>* aborting) { floor_ = floor, aborting_ = aborting; }
  /// Whether this rank is to say why the run ends, with `status`, for all that can be asked: those of its node, and all where there is a
  /// watch. Another one is where this rank ends before has_spoken(). For handlers of signals too. Takes some seconds at most.
  bool become_speaker(int status) const;
  void has_spoken() const;
  /// Of the first rank of the node that wanted to say why the run ends; `fallback` where that is not known.
  int first_status(int fallback) const;
  /// Marks this process: it is in abort(), for a fault of its own or over a lost rank, and no other rank is to be told that it was lost.
  void mark_aborting() const;
  /// The world rank of a process of this node that has ended unmarked, or of one of another node that was lost.
  std::optional<int> lost_rank() const;

 private:
  std::vector<int> world_ranks_;
  std::vector<int> descriptors_;  // of processes; -1: our own, or not known
  int own_ = 0;                   // local rank
  NodeFloor* floor_ = nullptr;
  std::atomic<bool>* aborting_ = nullptr;
  Watch* watch_ = nullptr;
  const std::atomic<int>* lost_ = nullptr;  // the watch's: handlers read it
};

/// Where abort() ends this process, looks for half a second for a lost rank among `peers`, names it and leaves with ExitCode::lost:
/// by CMA ranks of a node read each other's memory, and UCX aborts the reader when the other is gone. Where none is lost, and for SIGABRT
/// from another process, the process ends by the signal. `peers` must stay where it is until a call with null.
void explain_aborts(const Peers* peers, int rank);

}  // namespace tessera
