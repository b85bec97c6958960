// Compiles a deck and a place in the mesh into a schedule.
#pragma once
#include "model/layout.hpp"
#include "schedule/task.hpp"

namespace tessera {

/// What a schedule is built from.
struct BuildRequest {
  Deck deck;
  Layout layout;
  int rank = 0, ranks = 1;                    ///< of the data-parallel axis
  bool training = true;                       ///< false: evaluation only, no gradients and no optimizer state
  std::int64_t evaluation_micro_batches = 0;  ///< per rank; 0: no evaluation program
};

/// Names of persistent buffers: "parameters.UNIT", "master.UNIT", "adam_m.UNIT", "adam_v.UNIT", "gradients.UNIT", "tokens", "targets",
/// "weights", "rope", "scalars", "inputs", "adamw", "report".
Schedule build_schedule(const BuildRequest& request);

/// Where a unit's fp32 master weights and moments lie on this rank: `group` is master, adam_m or adam_v. With fp32 compute the master is
/// the compute copy.
struct StateRange {
  int buffer = 0;
  std::int64_t offset_bytes = 0;  ///< of the first element of `range`
  Range range;                    ///< elements of the unit
};
enum class StateSide : std::uint8_t {
  host,   ///< where the host reads and writes it: after snapshot, before restore
  tasks,  ///< where tasks use it, which may be a GPU's memory
};
StateRange state_range(const Schedule& schedule, const BuildRequest& request, const std::string& group, int unit,
                       StateSide side = StateSide::host);

/// The layout that a deck asks for on `ranks` data-parallel ranks.
Layout layout_for(const Deck& deck, int ranks);

}  // namespace tessera
