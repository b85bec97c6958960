// The communicators that a schedule's collectives run on: one for each lane and group of ranks that they name.
#pragma once
#include <map>
#include <set>

#include "schedule/task.hpp"
#include "topology/communicators/make_communicator.hpp"

namespace tessera {

class Communicators {
 public:
  /// Throws Error(internal) where no collective of the schedule runs there.
  Communicator& at(Lane lane, Axes axes) const;
  void set(Lane lane, Axes axes, std::unique_ptr<Communicator> communicator);
  /// Of this rank and the rank `peer` of the world. Throws likewise.
  Communicator& link(Lane lane, int peer) const;
  void set_link(Lane lane, int peer, std::unique_ptr<Communicator> communicator);
  /// Each, lane by lane.
  std::vector<Communicator*> all() const;
  /// "nccl", or "none" for a rank alone.
  std::string path() const;
  /// Blocks of a GPU that gathers and reductions may take, which products beside them leave.
  int blocks() const { return blocks_; }
  void set_blocks(int blocks) { blocks_ = blocks; }

 private:
  std::array<std::array<std::unique_ptr<Communicator>, axes_sets>, lane_count> by_lane_;
  std::map<std::pair<Lane, int>, std::unique_ptr<Communicator>> links_;  ///< by lane and peer
  int blocks_ = 0;
};

/// What a schedule's collectives and transfers run on, in an order that all ranks of a group share.
struct WantedCommunicators {
  std::set<std::pair<Lane, Axes>> groups;
  std::set<std::pair<Lane, int>> links;  ///< by peer: with the stage before first, so that no ring of stages waits
  int blocks = 0;                        ///< of a GPU that gathers and reductions may take; 0: as NCCL likes
};
WantedCommunicators wanted_communicators(const Schedule& schedule);

/// Of several schedules.
WantedCommunicators wanted_communicators(std::span<const Schedule* const> schedules);

/// Collective over the ranks of the mesh, each of which hands in what its own schedules want. `options.lane` is set for each.
Communicators make_communicators(const World& world, const Mesh& mesh, const WantedCommunicators& wanted, CommunicatorOptions options);

}  // namespace tessera
