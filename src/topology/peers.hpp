// Whether the other processes of this node are alive.
#pragma once
#include <sys/types.h>

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
  /// The world rank of a process of this node that has ended.
  std::optional<int> ended_rank() const;

 private:
  std::vector<pid_t> pids_;
  std::vector<int> world_ranks_;
  std::vector<int> descriptors_;  // of processes; -1: our own, or not known
};

/// Where MPI ends this process by abort(), names a process of `peers` that ended before, and leaves with ExitCode::environment: by CMA
/// ranks of a node read each other's memory, and UCX aborts the reader when the other is gone. Until called with null.
void explain_aborts(const Peers* peers, int rank);

}  // namespace tessera
