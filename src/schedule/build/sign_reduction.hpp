// Reduction of momenta as signs (1-bit Adam). Each rank packs the signs of its momenta, with error feedback, and sends each rank a part of
// every tensor. That rank averages the part and packs the mean likewise, and all ranks gather the packed means.
#pragma once
#include "schedule/build/emitter.hpp"

namespace tessera {

/// Sends each rank the signs of the part that it averages.
void emit_exchange_of_signs(Emitter& out, int unit);
/// Averages this rank's part, and gathers the packed means of all parts.
void emit_gather_of_signs(Emitter& out, int unit);
/// Unpacks the means into the momenta.
void emit_momenta_of_signs(Emitter& out, int unit);

}  // namespace tessera
