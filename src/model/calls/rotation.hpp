// Positions of queries and keys, of rows and heads as `inside` counts them.
#pragma once
#include "model/record/recorder.hpp"

namespace tessera {

/// In place, the query and key heads of qkv (M, (H+2G) D), by the rotation of the layer's kind; nothing where it has none.
void rope(Recorder& r, Value qkv);
void rope_backward(Recorder& r, Value d_qkv);
/// out = rope(norm(x)) of the query and key heads, value heads as they are; rstd (M, H+G) fp32.
void qk_norm_rope(Recorder& r, Value out, Value rstd, Value x, const std::string& q_norm, const std::string& k_norm);
/// In place on d_qkv.
void qk_norm_rope_backward(Recorder& r, Value d_qkv, Value x, Value rstd, const std::string& q_norm, const std::string& k_norm);
/// What rope reads: the tables where positions are 0 to T-1; a token's row of each is found here, once for all layers.
void positions(Recorder& r);

}  // namespace tessera
