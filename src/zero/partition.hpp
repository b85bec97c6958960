// Who keeps what. Pure functions: no MPI, no memory.
#pragma once
#include <cstdint>
#include <vector>

#include "model/table/layout.hpp"

namespace tessera {

/// What of a unit a rank keeps whole between tasks; the rest it keeps as its own shard (Rajbhandari et al., arXiv:1910.02054).
struct UnitStorage {
  bool parameters_whole = true;  ///< compute copy
  bool gradients_whole = true;   ///< sums over micro-batches
  bool optimizer_whole = true;   ///< master weights and moments
};
/// The stage of ZeRO that a unit has. What both ends of a pipeline share meets once a step, since they work on other micro-batches at a
/// time: such a unit has its gradients whole until then.
std::int64_t stage_of_unit(std::int64_t stage, const Unit& unit);
/// Stage 0 keeps all whole, 1 shards optimizer state, 2 also gradients, 3 also parameters (not those of the persistent unit). One shard is
/// the whole. What is not trained is whole at every stage.
UnitStorage unit_storage(int stage, const Unit& unit, int shards);

/// What rank `rank` owns of a unit.
Range owned_range(const Layout& layout, int unit, int rank);

/// Cuts [0, shard_elements) so that a collective over `shards` ranks moves at most `bucket` elements, on whole blocks. At least one block a
/// piece.
std::vector<Range> cut_shard(std::int64_t shard_elements, int shards, std::int64_t bucket);

/// Gaps of a unit: elements of [0, unit.elements) that belong to no tensor (alignment and tail padding).
std::vector<Range> padding_of(const Unit& unit);

}  // namespace tessera
