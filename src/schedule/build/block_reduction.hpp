// Reduce-scatter of gradients that travel as blocks of few bits (ZeRO++ qgZ).
#pragma once
#include "schedule/build/gradient_reduction.hpp"

namespace tessera {

void emit_block_reduce_scatter(Emitter& out, const GradientReduction& reduction, const Use& to);

}  // namespace tessera
