// State below the memory that kernels use. Reduced gradients are downloaded, host code computes their norm and updates the master weights,
// and compute copies are uploaded: after the update, or for each use if they are offloaded too.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "schedule/build/emitter.hpp"

namespace tessera {

/// Emits a disk task with these (to, from) pairs.
void emit_disk(Emitter& out, const char* verb, const std::string& unit, const std::vector<std::pair<Use, Use>>& moves);
/// Downloads this rank's part of a unit's gradient. The first one of a step begins its sum; after the last one its norm is computed.
void emit_gradient_down(Emitter& out, int unit, const Use& part, bool first, bool last);
/// Updates offloaded state. If `changes`, master weights change, and the compute copy is uploaded.
void emit_optimizer_below(Emitter& out, int unit, const Range& elements, Task task, bool changes);
void emit_offloaded_cast(Emitter& out, int unit);
/// Where host code writes a piece of the compute copy: in its place, or in staging. No bytes if the master weights are the compute copy.
Use made_on_host(Emitter& out, int unit, const Range& elements);
/// Uploads a unit's shard for a gather: into `target` if the shard is the whole unit.
Use emit_upload_shard(Emitter& out, int unit, int number, int target);

}  // namespace tessera
