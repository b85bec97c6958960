// Over context-parallel ranks that exchange tokens for heads before attention and heads for tokens after it (Jacobs et al., DeepSpeed
// Ulysses, arXiv:2309.14509): each holds M = B T / cp tokens, and inside attention all B T tokens with a part of the heads (`inside`).
// Alone and in a ring (ring.hpp) both are the same, and nothing is exchanged.
#pragma once
#include "model/record/recorder.hpp"

namespace tessera {

/// The M rows of N that attention has as `of_heads`.
Value rows_of(Recorder& r, Value of_heads, const char* name, std::int64_t N);
/// The B T rows of N / cp that attention has of rows of N, which are a context.
Value heads_of(Recorder& r, Value rows, const char* name, std::int64_t N);
/// What rows hold: query, key and value heads, or what query heads make of values.
enum class HeadRow : std::uint8_t { qkv, context };
/// of_heads from rows, each of all ranks' tokens.
void rows_to_heads(Recorder& r, Value of_heads, Value rows, HeadRow row);
/// rows from of_heads: gradients of key heads that several ranks have are added.
void heads_to_rows(Recorder& r, Value rows, Value of_heads, HeadRow row);
/// linear_backward where x holds the context's rows: d_heads is the gradient of that, and the weight's is made while it is
/// on its way. d_x are its rows.
void linear_backward_to_heads(Recorder& r, Value d_heads, Value d_x, Value d_y, Value x, const std::string& w, std::int64_t N,
                              std::int64_t K);

/// out (M, H Dv) and lse (B,H,T) fp32 of qkv (M, H D + G (D+Dv)), causal, of rows and heads as `inside` counts them. Keys and values of a
/// prompt also begin the caches; a token's join them, and it sees all that they hold (no lse). `sinks` names those of the heads; "": none.
void attention(Recorder& r, Value out, Value lse, Value qkv, const std::string& sinks);
void attention_backward(Recorder& r, Value d_qkv, Value d_out, Value qkv, Value out, Value lse);

}  // namespace tessera
