// What this machine's matrix product reaches, as the yardstick of MFU.
#pragma once
#include "base/types.hpp"

namespace tessera {

/// FLOP/s of a large GEMM in `dtype` on this rank's threads: best of a few, some tens of milliseconds.
double measure_gemm_rate(DType dtype);

}  // namespace tessera
