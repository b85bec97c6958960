// The arithmetic of LayerNorm, for one float and for sixteen lanes, on host and GPU: RMSNorm's, of x - mean.
// With y = d_out * weight and xhat = (x - mean) * rstd: d_x = rstd * (y - mean(y) - xhat * mean(y * xhat)) [+ d_residual],
// d_weight += d_out * xhat, d_bias += d_out.
#pragma once
#include "kernels/rmsnorm/formulas.hpp"

namespace tessera::kernels::norm {

/// What the mean of y takes from each element of d_x, where `sum` is y's over a row.
TESSERA_BOTH inline float level(float sum, std::int64_t C, float rstd) { return -(sum / static_cast<float>(C)) * rstd; }

}  // namespace tessera::kernels::norm
