// Updates of whole matrices (Muon). Owners of shards write bf16 momenta, which are gathered. One of the ranks that share a unit's state
// then makes each matrix orthogonal, and the results go back to the shards.
#pragma once
#include <vector>

#include "schedule/build/emitter.hpp"

namespace tessera {

/// Whether a unit's optimizer updates whole matrices.
bool takes_matrices(const Emitter& out, int unit);
/// Updates all units with such an optimizer, some at a time.
void emit_updates_of_matrices(Emitter& out);
void emit_updates_of_matrices(Emitter& out, const std::vector<int>& units);
/// Elements of a unit in the buffer of its matrices: bf16, in the kernels' tier. It holds the momenta, then the orthogonal matrices.
Use matrices_of(Emitter& out, int unit, const Range& elements, Access access);
/// Copies elements of the matrices to the tier of the unit's state, or from it (`up`).
void emit_matrices_between_tiers(Emitter& out, int unit, const Range& elements, const Use& below, bool up);

}  // namespace tessera
