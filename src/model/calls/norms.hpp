// Norms of the R rows of the stream that this rank has, RMSNorm or LayerNorm as the model has them; `w` names the weight, and "w_bias" is
// LayerNorm's bias.
#pragma once
#include "model/record/recorder.hpp"

namespace tessera {

/// What a norm's backward pass needs of each row: rstd (R) fp32, and of LayerNorm the means behind them.
Value norm_rows(Recorder& r, const char* name);
/// out (R,C) = norm(x) w, plus `residual` (R,C) where it is there.
void norm(Recorder& r, Value out, Value rows, Value x, const std::string& w, Value residual = {});
/// d_x = gradient through the norm, and the gradients of its tensors. With `residual` d_x holds the residual's gradient, which the norm's
/// joins.
void norm_backward(Recorder& r, Value d_x, Value d_out, Value x, const std::string& w, Value rows, bool residual);

}  // namespace tessera
