// What a step takes at least, known without places and without a simulation: what a search need not look at.
#pragma once
#include <map>
#include <vector>

#include "schedule/build/builder.hpp"
#include "schedule/plan/memory_plan.hpp"
#include "schedule/simulate/search_space.hpp"
#include "schedule/simulate/simulate.hpp"
#include "schedule/simulate/task_seconds.hpp"

namespace tessera {

/// No simulation of the training step takes less. A lane runs its tasks one after the other; and what waits for the norm of all gradients
/// comes after all that compute does before it.
double least_seconds(const Schedule& schedule, const TaskSeconds& seconds, bool lanes_side_by_side);

/// No plan takes less of any tier: what lives at the moment at which most does.
TierBytes least_bytes(const Schedule& schedule);

struct Least {
  double seconds = 0;
  TierBytes bytes{};
};

/// The same of every point of a search, from a schedule for each of its layouts and for each way with activations: what of a step depends
/// on the one does not depend on the other.
class SearchBounds {
 public:
  SearchBounds(const std::vector<SearchPoint>& points, const MachineProfile& machine, const Placement& placement);
  Least of(const SearchPoint& point) const;

 private:
  using LaneSeconds = std::array<double, lane_count>;
  /// Of a layout: what lives through the run; lanes whose tasks depend on neither activations nor what is gathered when; what comes after
  /// the norm.
  struct OfLayout {
    TierBytes kept{};
    LaneSeconds once{}, first{}, middle{}, last{}, after_norm{};
    std::int64_t steps = 0;     ///< micro-batches of a rank that it was looked at with
    Tier kernels = Tier::host;  ///< where they worked then
  };
  /// Of activations and a micro-batch's size: passes of compute, ways of kept streams, and bytes at the worst pass.
  struct OfActivation {
    double passes = 0;
    LaneSeconds streams{};
    std::int64_t bytes = 0, bytes_at_stage_3 = 0;  ///< of kernels' memory
    TierBytes below{};
  };
  OfLayout look_at_layout(const Deck& deck) const;
  OfActivation look_at_activation(Deck deck) const;
  double seconds_of(const SearchPoint& point) const;
  LaneSeconds lanes_of(const OfLayout& layout, std::int64_t steps) const;

  const MachineProfile machine_;
  const Placement placement_;
  std::vector<OfLayout> layouts_;
  std::map<std::pair<std::size_t, std::int64_t>, OfActivation> activations_;  ///< by number and batch.micro
};

}  // namespace tessera
