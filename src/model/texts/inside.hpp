// What attention and a feed-forward block do between both ends of a block (axes/block.hpp): of a text that has one of them, and of the one
// that has them side by side. `w` names tensors: "layers.3.attention.", "layers.3.mlp.".
#pragma once
#include "model/axes/tensor.hpp"

namespace tessera {

struct AttentionInside {
  Value whole;         ///< (M,C): all ranks' rows of what it reads
  Value unnormed;      ///< (M, own_qkv_width): rows before QK-norm of the whole width, where there is one
  Value qk_sums;       ///< (tp,M,2) fp32, the same
  Value raw;           ///< (B T, h D + g (D+Dv)) of this rank's h and g heads: rows before QK-norm, where there is one
  Value qk_rstd;       ///< (B T, h+g) fp32, the same
  Value qkv;           ///< (B T, h D + g (D+Dv)): queries, keys and values, rotated
  Value context;       ///< (B T, h Dv)
  Value lse;           ///< (B,h,T) fp32
  Value context_rows;  ///< (M, H Dv): of all heads, this rank's tokens
  Value rows, made;    ///< queries, keys and values as products have made them, on their way to heads
};
AttentionInside attention_inside(Recorder& r, Value whole);
/// context_rows = attention(rope(qk_norm([wq; wk; wv] whole + b)))
void attend(Recorder& r, const std::string& w, const AttentionInside& v);
/// What leaves it: wo context_rows + bo.
LeavingProduct attention_leaving(const Recorder& r, const std::string& w, const AttentionInside& v);
/// From d_out (M,C), the gradient of what has left, that of the product of queries, keys and values; and those of all tensors but that
/// product's matrices and bo.
EnteringProduct attend_backward(Recorder& r, const std::string& w, const AttentionInside& v, Value d_out);

struct MlpInside {
  Value whole;      ///< (M,C): all ranks' rows of what it reads
  Value gate_up;    ///< (M,2F): gate, then up; without a gate (M,F)
  Value activated;  ///< (M,F)
};
MlpInside mlp_inside(Recorder& r, Value whole);
/// activated = act(gate) * up, where [gate; up] = [w_gate; w_up] whole + b, or act(up)
void feed(Recorder& r, const std::string& w, const MlpInside& v);
/// What leaves it: w_down activated + b_down.
LeavingProduct mlp_leaving(const Recorder& r, const std::string& w, const MlpInside& v);
/// From d_out (M,C) that of the product of gate and up; and those of all tensors but that product's matrices and b_down.
EnteringProduct feed_backward(Recorder& r, const std::string& w, const MlpInside& v, Value d_out);

}  // namespace tessera
