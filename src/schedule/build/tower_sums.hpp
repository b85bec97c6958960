// A tower beside the model has sums of a step of its own: it begins, counts and ends as an evaluation does.
#pragma once
#include "schedule/build/emitter.hpp"

namespace tessera {

void emit_begin_of(Emitter& out, const Tower& tower);
/// What the host reads of them.
void emit_finish_of(Emitter& out, const Tower& tower);

}  // namespace tessera
