// Sums over a unit's tensors, or over their rows and columns, between two phases of an update (LAMB, Adafactor).
#pragma once
#include <cstdint>

#include "schedule/build/emitter.hpp"

namespace tessera {

/// Words before the sums of a slot, in the sums of a unit's rows and columns.
std::int64_t words_before(const LinesBefore& lines, std::int64_t slots);
/// The sums of a unit, in the tier where its update runs.
Use tensor_sums(Emitter& out, int unit, UpdateOperand::Kind kind, Access access);
/// Adds them up over the ranks that hold other elements of the unit.
void emit_all_reduce_of_sums(Emitter& out, int unit, UpdateOperand::Kind kind);

}  // namespace tessera
