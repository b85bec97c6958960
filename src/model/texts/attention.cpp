// The attention of a layer.
#include <fmt/format.h>

#include "model/axes/block.hpp"
#include "model/axes/context.hpp"
#include "model/axes/wide_qk_norm.hpp"
#include "model/calls/attention.hpp"
#include "model/calls/products.hpp"
#include "model/calls/rotation.hpp"
#include "model/texts/inside.hpp"

namespace tessera {

AttentionInside attention_inside(Recorder& r, Value whole) {
  const ModelShape &s = r.s, &h = r.inside;
  const Attention &a = s.attention, &own = h.attention;
  const std::int64_t M = h.tokens(), W = own.qkv_width();
  AttentionInside v{.whole = whole,
                    .unnormed = a.wide_qk_norm ? r.value("qkv_before_norm", {s.tokens(), s.own_qkv_width()}) : Value{},
                    .qk_sums = a.wide_qk_norm ? r.value("qk_sums", {s.tp, s.tokens(), 2}, DType::f32) : Value{},
                    .raw = a.qk_norm ? r.value("qkv_before_norm", {M, W}) : Value{},
                    .qk_rstd = a.qk_norm ? r.value("qk_rstd", {M, own.H + own.G}, DType::f32) : Value{},
                    .qkv = r.value("qkv", {M, W}),
                    .context = r.value("context", {M, own.context_width()}),
                    .lse = r.value("lse", {s.B, own.H, h.T}, DType::f32),
                    .context_rows = {},
                    .rows = {},
                    .made = {}};
  v.context_rows = rows_of(r, v.context, "context_rows", a.context_width());
  v.rows = rows_of(r, a.qk_norm ? v.raw : v.qkv, "qkv_rows", a.qkv_width());
  v.made = own_qkv(r, v.rows, "qkv_made");
  return v;
}

void attend(Recorder& r, const std::string& w, const AttentionInside& v) {
  const ModelShape& s = r.s;
  const Attention& a = s.attention;
  linear(r, a.wide_qk_norm ? v.unnormed : v.made, v.whole, w + "wq", s.own_qkv_width(), s.C, {.bias = a.qkv_bias ? w + "bq" : ""});
  if (a.wide_qk_norm) wide_qk_norm(r, v.made, v.qk_sums, v.unnormed, w + "q_norm", w + "k_norm");
  gather_keys(r, v.rows, v.made);
  rows_to_heads(r, a.qk_norm ? v.raw : v.qkv, v.rows, HeadRow::qkv);
  if (a.qk_norm)
    qk_norm_rope(r, v.qkv, v.qk_rstd, v.raw, w + "q_norm", w + "k_norm");
  else
    rope(r, v.qkv);
  attention(r, v.context, v.lse, v.qkv, a.sinks ? w + "sinks" : "");
  heads_to_rows(r, v.context_rows, v.context, HeadRow::context);
}

LeavingProduct attention_leaving(const Recorder& r, const std::string& w, const AttentionInside& v) {
  const Attention& a = r.s.attention;
  return {.y = v.context_rows, .matrix = w + "wo", .K = a.context_width(), .bias = a.out_bias ? w + "bo" : ""};
}

EnteringProduct attend_backward(Recorder& r, const std::string& w, const AttentionInside& v, Value d_out) {
  const ModelShape &s = r.s, &h = r.inside;
  const Attention& a = s.attention;
  const std::int64_t M = s.tokens(), C = s.C, K = a.context_width(), W = s.own_qkv_width();
  const Value d_rows = r.value("d_context", {M, K}), d_context = heads_of(r, d_rows, "d_context_heads", K);
  const Value d_qkv = r.value("d_qkv", {h.tokens(), h.attention.qkv_width()}), d_qkv_rows = rows_of(r, d_qkv, "d_qkv_rows", a.qkv_width());
  const Value d_made = own_qkv(r, d_qkv_rows, "d_qkv_made");
  linear_backward_to_heads(r, d_context, d_rows, d_out, v.context_rows, w + "wo", C, K);
  if (a.sinks) sinks_backward(r, d_context, v.context, v.lse, w + "sinks");
  attention_backward(r, d_qkv, d_context, v.qkv, v.context, v.lse);
  if (a.qk_norm)
    qk_norm_rope_backward(r, d_qkv, v.raw, v.qk_rstd, w + "q_norm", w + "k_norm");
  else
    rope_backward(r, d_qkv);
  heads_to_rows(r, d_qkv_rows, d_qkv, HeadRow::qkv);
  scatter_keys(r, d_made, d_qkv_rows);
  if (a.wide_qk_norm) wide_qk_norm_backward(r, d_made, v.unnormed, v.qk_sums, w + "q_norm", w + "k_norm");
  if (a.qkv_bias) bias_backward(r, d_made, w + "bq", W);
  return {.d_y = d_made, .matrix = w + "wq", .N = W};
}

/// out = x + wo(attention(rope(qk_norm([wq; wk; wv](norm(x)) + b)))) + bo; norms as the block has them.
Segment attention_segment(const ModelShape& s, int layer) {
  Recorder r(in_layer(s, layer), fmt::format("layers.{}.attention", layer), layer);
  const std::string w = fmt::format("layers.{}.attention.", layer);
  const BlockEnds ends = block_ends(r);
  const AttentionInside v = attention_inside(r, whole_of(r, ends.input, "normed_whole", s.C));
  enter_block(r, ends, w);
  gather_rows(r, v.whole, ends.input);
  attend(r, w, v);
  leave_block(r, ends, w, {attention_leaving(r, w, v)});
  if (!r.backward()) return r.take();

  const Value d_block = enter_block_backward(r, ends, w), d_out = whole_of(r, d_block, "d_out", s.C);
  if (s.attention.out_bias) bias_backward(r, d_block, w + "bo", s.C, Rows{0, s.rows()});
  gather_rows(r, d_out, d_block);
  will_need(r, v.whole);
  const EnteringProduct product = attend_backward(r, w, v, d_out);
  const Value d_input = gradient_of_input(r, ends);
  linear_backward_to_part(r, d_input, {product}, v.whole);
  leave_block_backward(r, ends, w, d_input);
  return r.take();
}

}  // namespace tessera
