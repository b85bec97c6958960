// What this machine's matrix product reaches, as the yardstick of MFU.
#pragma once
#include "kernels/context.hpp"

namespace tessera {

/// FLOP/s of a square GEMM in `dtype`, of this rank's threads or its GPU: best of a few, of the first size that takes some milliseconds.
/// Needs up to 3 x 8192^2 elements of memory while it runs.
double measure_gemm_rate(DType dtype, kernels::Backend backend);

}  // namespace tessera
