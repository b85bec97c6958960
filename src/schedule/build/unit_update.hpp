// The update of a unit, and the compute copies that change with it.
#pragma once
#include <cstddef>
#include <vector>

#include "schedule/build/emitter.hpp"

namespace tessera {

/// Updates all units.
void emit_updates(Emitter& out);
/// Updates a unit.
void emit_update(Emitter& out, int unit);
/// Updates a unit, piece by piece, in the tier of its state: one phase of the optimizer.
void emit_optimizer(Emitter& out, int unit, const std::vector<UpdateCall>& calls);
/// Encodes master weights into a compute copy of blocks.
Task encoding(const Emitter& out, int unit, const Range& elements, const Use& to, const Use& master);
/// Makes a unit's compute copy from its master weights, also if they are offloaded.
void emit_cast(Emitter& out, int unit);
/// Gathers updated shards in place, if compute copies are whole and each rank updates its own shard.
void emit_publish_gather(Emitter& out, int unit, Lane lane);
/// Packs a unit's compute copies again after they have changed.
void emit_pack(Emitter& out, int unit);
/// Whether a step packs a unit again: frozen weights too if their fp8 scale changes.
bool packs_again(const Emitter& out, int unit);

}  // namespace tessera
