// The communicators that a schedule's collectives run on: one for each lane and group of ranks that they name.
#pragma once
#include "schedule/task.hpp"
#include "topology/communicators/make_communicator.hpp"

namespace tessera {

class Communicators {
 public:
  /// Throws Error(internal) where no collective of the schedule runs there.
  Communicator& at(Lane lane, Axes axes) const;
  void set(Lane lane, Axes axes, std::unique_ptr<Communicator> communicator);
  /// Each, lane by lane.
  std::vector<Communicator*> all() const;
  /// "nccl", or "none" for a rank alone.
  std::string path() const;

 private:
  std::array<std::array<std::unique_ptr<Communicator>, 1 << axis_count>, lane_count> by_lane_;
};

/// Collective over the ranks of the mesh, each of which hands in its own schedule. `options.lane` is set for each.
Communicators make_communicators(const World& world, const Mesh& mesh, const Schedule& schedule, CommunicatorOptions options);

}  // namespace tessera
