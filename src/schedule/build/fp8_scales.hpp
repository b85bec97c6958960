// Scales of fp8 products from the largest magnitudes of earlier steps (delayed scaling).
#pragma once
#include <string>

#include "kernels/fp8_history/fp8_history.hpp"
#include "schedule/build/emitter.hpp"

namespace tessera {

/// Computes the scales from the histories. `enters`: the step's largest magnitudes over all ranks join the histories first.
void emit_fp8_scales(Emitter& out, bool enters);
/// In a buffer with a number for each history, those of some tensors, or that of a weight; no bytes without histories.
Use fp8_of(const Emitter& out, const char* buffer, kernels::Fp8Tensor first, kernels::Fp8Tensor last, Access access);
Use fp8_of_weight(const Emitter& out, const char* buffer, const std::string& weight, Access access);

}  // namespace tessera
