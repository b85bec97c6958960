// The attention of a layer.
#include <fmt/format.h>

#include "model/record/recorder.hpp"

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
              .whole = r.whole_of(normed, "normed_whole", C),
              .raw = s.qk_norm ? r.value("qkv_before_norm", {M, W}) : Value{},
              .qk_rstd = s.qk_norm ? r.value("qk_rstd", {M, h.H + h.G}, DType::f32) : Value{},
              .qkv = r.value("qkv", {M, W}),
              .context = r.value("context", {M, h.H * s.D}),
              .lse = r.value("lse", {s.B, h.H, h.T}, DType::f32),
              .context_rows = {}};
  v.context_rows = r.rows_of(v.context, "context_rows", s.H * s.D);
  const Value heads = s.qk_norm ? v.raw : v.qkv, rows = r.rows_of(heads, "qkv_rows", s.qkv_width());
  const Value made = r.made_of(rows, "qkv_made");
  r.rmsnorm(v.normed, v.rstd, v.x, w + "norm");
  r.gather_rows(v.whole, v.normed);
  r.linear(made, v.whole, w + "wq", s.made_width(), C, {.bias = s.qkv_bias ? w + "bq" : ""});
  r.gather_keys(rows, made);
  r.rows_to_heads(heads, rows, s.H, s.G);
  if (s.qk_norm)
    r.qk_norm_rope(v.qkv, v.qk_rstd, v.raw, w + "q_norm", w + "k_norm");
  else
    r.rope(v.qkv);
  r.attention(v.context, v.lse, v.qkv);
  r.heads_to_rows(v.context_rows, v.context, s.H, 0);
  r.linear_to_stream(r.stream_out(), v.context_rows, w + "wo", C, s.H * s.D, v.x);
  return v;
}

void backward(Recorder& r, const std::string& w, const Attention& v) {
  const ModelShape &s = r.s, &h = r.inside;
  const std::int64_t M = s.tokens(), C = s.C, K = s.H * s.D, W = s.made_width();
  const Value d_stream = r.d_stream();  // of out, in the end of x
  const Value d_out = r.whole_of(d_stream, "d_out", C);
  const Value d_rows = r.value("d_context", {M, K}), d_context = r.heads_of(d_rows, "d_context_heads", K);
  const Value d_qkv = r.value("d_qkv", {h.tokens(), h.qkv_width()}), d_qkv_rows = r.rows_of(d_qkv, "d_qkv_rows", s.qkv_width());
  const Value d_made = r.made_of(d_qkv_rows, "d_qkv_made");
  r.gather_rows(d_out, d_stream);
  r.will_need(v.whole);
  r.linear_backward_to_heads(d_context, d_rows, d_out, v.context_rows, w + "wo", C, K);
  r.attention_backward(d_qkv, d_context, v.qkv, v.context, v.lse);
  if (s.qk_norm)
    r.qk_norm_rope_backward(d_qkv, v.raw, v.qk_rstd, w + "q_norm", w + "k_norm");
  else
    r.rope_backward(d_qkv);
  r.heads_to_rows(d_qkv_rows, d_qkv, s.H, s.G);
  r.scatter_keys(d_made, d_qkv_rows);
  if (s.qkv_bias) r.bias_backward(d_made, w + "bq", W);
  const Value d_normed = r.gradient_of_part(v.normed, "d_normed", C);
  r.linear_backward_to_part(d_normed, d_made, v.whole, w + "wq", W, C);
  r.rmsnorm_backward(d_stream, d_normed, v.x, w + "norm", v.rstd, true);
}

}  // namespace

Segment attention_segment(const ModelShape& s, int layer) {
  Recorder r(s, fmt::format("layers.{}.attention", layer), layer);
  const std::string w = fmt::format("layers.{}.attention.", layer);
  const Attention v = attention_forward(r, w);
  if (r.backward()) backward(r, w, v);
  return r.take();
}

}  // namespace tessera
