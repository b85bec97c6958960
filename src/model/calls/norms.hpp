// RMS norms of the R rows of the stream that this rank has.
#pragma once
#include "model/record/recorder.hpp"

namespace tessera {

/// out (R,C) = norm(x) w, plus `residual` (R,C) where it is there; rstd (R) fp32.
void rmsnorm(Recorder& r, Value out, Value rstd, Value x, const std::string& w, Value residual = {});
/// d_x = gradient through the norm, and w's gradient. With `residual` d_x holds the residual's gradient, which the norm's joins.
void rmsnorm_backward(Recorder& r, Value d_x, Value d_out, Value x, const std::string& w, Value rstd, bool residual);

}  // namespace tessera
