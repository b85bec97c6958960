// Whether the other processes of this node are alive.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <optional>
#include <vector>

#include "topology/mpi.hpp"

namespace tessera {

/// Watches the processes of a node's ranks. A launcher may leave the others alone when one dies (srun's default), and MPI does not notice.
class Peers {
 public:
  Peers() = default;
  /// Collective over the ranks of a node.
  explicit Peers(MPI_Comm node);
  ~Peers();
  Peers(Peers&& other) noexcept { *this = std::move(other); }
  Peers& operator=(Peers&& other) noexcept;

  /// By local rank.
  const std::vector<pid_t>& pids() const { return pids_; }
  /// False also where it cannot be known.
  bool has_ended(int local_rank) const;
  /// The world rank of a process of this node that has ended, of several one that was lost.
  std::optional<int> ended_rank() const;

  /// Takes a mark for each local rank, all false, in memory that the node's ranks share.
  void share_marks(std::atomic<bool>* aborting) { aborting_ = aborting; }
  /// Marks this process: it is in abort(), for a fault of its own or over a lost rank, and no other rank is to be told that it was lost.
  void mark_aborting() const;
  /// The world rank of a process of this node that has ended unmarked. None where nothing is shared.
  std::optional<int> lost_rank() const;

 private:
  std::vector<pid_t> pids_;
  std::vector<int> world_ranks_;
  std::vector<int> descriptors_;  // of processes; -1: our own, or not known
  int own_ = 0;                   // local rank
  std::atomic<bool>* aborting_ = nullptr;
};

/// Where abort() ends this process, looks for half a second for a lost rank among `peers`, names it and leaves with ExitCode::lost:
/// by CMA ranks of a node read each other's memory, and UCX aborts the reader when the other is gone. Where none is lost, and for SIGABRT
/// from another process, the process ends by the signal. `peers` must stay where it is until a call with null.
void explain_aborts(const Peers* peers, int rank);

}  // namespace tessera
