// The attention of a layer.
#include <fmt/format.h>

#include "model/axes/context.hpp"
#include "model/axes/tensor.hpp"
#include "model/calls/norms.hpp"
#include "model/calls/products.hpp"
#include "model/calls/rotation.hpp"

namespace tessera {
namespace {

struct Attention {
  Value x;             ///< (R,C)
  Value normed;        ///< (R,C)
  Value rstd;          ///< (R) fp32
  Value whole;         ///< (M,C): all ranks' rows of normed
  Value raw;           ///< (B T, (h+2g) D) of this rank's h and g heads: rows before QK-norm, where there is one
  Value qk_rstd;       ///< (B T, h+g) fp32, the same
  Value qkv;           ///< (B T, (h+2g) D): queries, keys and values, rotated
  Value context;       ///< (B T, h D)
  Value lse;           ///< (B,h,T) fp32
  Value context_rows;  ///< (M, H D): of all heads, this rank's tokens
};

/// out = x + wo(attention(rope(qk_norm([wq; wk; wv](norm(x)) + b)))).
Attention attention_forward(Recorder& r, const std::string& w) {
  const ModelShape &s = r.s, &h = r.inside;
  const std::int64_t M = h.tokens(), R = s.rows(), C = s.C, W = h.qkv_width();
  const Value x = r.stream_in(), normed = r.remade("normed", {R, C});
  Attention v{.x = x,
              .normed = normed,
              .rstd = r.value("rstd", {R}, DType::f32),
              .whole = whole_of(r, normed, "normed_whole", C),
              .raw = s.qk_norm ? r.value("qkv_before_norm", {M, W}) : Value{},
              .qk_rstd = s.qk_norm ? r.value("qk_rstd", {M, h.H + h.G}, DType::f32) : Value{},
              .qkv = r.value("qkv", {M, W}),
              .context = r.value("context", {M, h.H * s.D}),
              .lse = r.value("lse", {s.B, h.H, h.T}, DType::f32),
              .context_rows = {}};
  v.context_rows = rows_of(r, v.context, "context_rows", s.H * s.D);
  const Value heads = s.qk_norm ? v.raw : v.qkv, rows = rows_of(r, heads, "qkv_rows", s.qkv_width());
  const Value made = made_of(r, rows, "qkv_made");
  rmsnorm(r, v.normed, v.rstd, v.x, w + "norm");
  gather_rows(r, v.whole, v.normed);
  linear(r, made, v.whole, w + "wq", s.made_width(), C, {.bias = s.qkv_bias ? w + "bq" : ""});
  gather_keys(r, rows, made);
  rows_to_heads(r, heads, rows, s.H, s.G);
  if (s.qk_norm)
    qk_norm_rope(r, v.qkv, v.qk_rstd, v.raw, w + "q_norm", w + "k_norm");
  else
    rope(r, v.qkv);
  attention(r, v.context, v.lse, v.qkv);
  heads_to_rows(r, v.context_rows, v.context, s.H, 0);
  linear_to_stream(r, r.stream_out(), v.context_rows, w + "wo", C, s.H * s.D, v.x);
  return v;
}

void backward(Recorder& r, const std::string& w, const Attention& v) {
  const ModelShape &s = r.s, &h = r.inside;
  const std::int64_t M = s.tokens(), C = s.C, K = s.H * s.D, W = s.made_width();
  const Value d_stream = r.d_stream();  // of out, in the end of x
  const Value d_out = whole_of(r, d_stream, "d_out", C);
  const Value d_rows = r.value("d_context", {M, K}), d_context = heads_of(r, d_rows, "d_context_heads", K);
  const Value d_qkv = r.value("d_qkv", {h.tokens(), h.qkv_width()}), d_qkv_rows = rows_of(r, d_qkv, "d_qkv_rows", s.qkv_width());
  const Value d_made = made_of(r, d_qkv_rows, "d_qkv_made");
  gather_rows(r, d_out, d_stream);
  will_need(r, v.whole);
  linear_backward_to_heads(r, d_context, d_rows, d_out, v.context_rows, w + "wo", C, K);
  attention_backward(r, d_qkv, d_context, v.qkv, v.context, v.lse);
  if (s.qk_norm)
    qk_norm_rope_backward(r, d_qkv, v.raw, v.qk_rstd, w + "q_norm", w + "k_norm");
  else
    rope_backward(r, d_qkv);
  heads_to_rows(r, d_qkv_rows, d_qkv, s.H, s.G);
  scatter_keys(r, d_made, d_qkv_rows);
  if (s.qkv_bias) bias_backward(r, d_made, w + "bq", W);
  const Value d_normed = gradient_of_part(r, v.normed, "d_normed", C);
  linear_backward_to_part(r, d_normed, d_made, v.whole, w + "wq", W, C);
  rmsnorm_backward(r, d_stream, d_normed, v.x, w + "norm", v.rstd, true);
}

}  // namespace

Segment attention_segment(const ModelShape& s, int layer) {
  Recorder r(in_layer(s, layer), fmt::format("layers.{}.attention", layer), layer);
  const std::string w = fmt::format("layers.{}.attention.", layer);
  const Attention v = attention_forward(r, w);
  if (r.backward()) backward(r, w, v);
  return r.take();
}

}  // namespace tessera
