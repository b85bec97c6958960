// Attention of the rows that a rank has, of rows and heads as `inside` counts them; over axes see axes/context.hpp.
#pragma once
#include "model/record/recorder.hpp"

namespace tessera {

/// out (M, H Dv) and lse (B,H,T) fp32 of qkv (M, H D + G (D+Dv)), causal.
void own_attention(Recorder& r, Value out, Value lse, Value qkv);
void own_attention_backward(Recorder& r, Value d_qkv, Value d_out, Value qkv, Value out, Value lse);
/// Queries attend to the logit of their head too, which has no value (kernels/attention_sinks): `sinks` names them. In place.
void add_sinks(Recorder& r, Value out, Value lse, const std::string& sinks);
/// Their gradient, of what add_sinks has left.
void sinks_backward(Recorder& r, Value d_out, Value out, Value lse, const std::string& sinks);
/// Keys and values.
std::vector<Cache> attention_caches(const ModelShape& s);
/// A prompt's rows, of `width` elements each, begin caches of rows: the first has the columns from `first` on, the next those behind them.
void fill_caches(Recorder& r, const std::vector<Cache>& caches, Value rows, std::int64_t first, std::int64_t width);
/// Those of a token join them, and it sees all that they hold, and sinks that are named.
void attention_decode(Recorder& r, Value out, Value qkv, const std::string& sinks);

}  // namespace tessera
