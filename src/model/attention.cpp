// The attention of a layer.
#include <fmt/format.h>

#include "model/recorder.hpp"

namespace tessera {
namespace {

struct Attention {
  Value x;        ///< (R,C)
  Value normed;   ///< (R,C)
  Value rstd;     ///< (R) fp32
  Value whole;    ///< (M,C): all ranks' rows of normed
  Value raw;      ///< (M, (H+2G) D): rows before QK-norm, where there is one
  Value qk_rstd;  ///< (M, H+G) fp32, the same
  Value qkv;      ///< (M, (H+2G) D): queries, keys and values of all heads, rotated
  Value context;  ///< (M, H D)
  Value lse;      ///< (B,H,T) fp32
};

/// out = x + wo(attention(rope(qk_norm([wq; wk; wv](norm(x)) + b)))).
Attention forward(Recorder& r, const std::string& w) {
  const ModelShape& s = r.s;
  const std::int64_t M = s.tokens(), R = s.rows(), C = s.C, W = s.qkv_width();
  const Value x = r.stream_in(), normed = r.remade("normed", {R, C});
  const Attention v{.x = x,
                    .normed = normed,
                    .rstd = r.value("rstd", {R}, DType::f32),
                    .whole = r.whole_of(normed, "normed_whole", C),
                    .raw = s.qk_norm ? r.value("qkv_before_norm", {M, W}) : Value{},
                    .qk_rstd = s.qk_norm ? r.value("qk_rstd", {M, s.H + s.G}, DType::f32) : Value{},
                    .qkv = r.value("qkv", {M, W}),
                    .context = r.value("context", {M, s.H * s.D}),
                    .lse = r.value("lse", {s.B, s.H, s.T}, DType::f32)};
  r.rmsnorm(v.normed, v.rstd, v.x, w + "norm");
  r.gather_rows(v.whole, v.normed);
  r.linear(s.qk_norm ? v.raw : v.qkv, v.whole, w + "wq", W, C, {.bias = s.qkv_bias ? w + "bq" : ""});
  if (s.qk_norm)
    r.qk_norm_rope(v.qkv, v.qk_rstd, v.raw, w + "q_norm", w + "k_norm");
  else
    r.rope(v.qkv);
  r.attention(v.context, v.lse, v.qkv);
  r.linear_to_stream(r.stream_out(), v.context, w + "wo", C, s.H * s.D, v.x);
  return v;
}

void backward(Recorder& r, const std::string& w, const Attention& v) {
  const ModelShape& s = r.s;
  const std::int64_t M = s.tokens(), C = s.C, W = s.qkv_width();
  const Value d_stream = r.d_stream();  // of out, in the end of x
  const Value d_out = r.whole_of(d_stream, "d_out", C);
  const Value d_context = r.value("d_context", {M, s.H * s.D}), d_qkv = r.value("d_qkv", {M, W});
  r.gather_rows(d_out, d_stream);
  r.will_need(v.whole);
  r.linear_backward(d_context, d_out, v.context, w + "wo", C, s.H * s.D);
  r.attention_backward(d_qkv, d_context, v.qkv, v.context, v.lse);
  if (s.qk_norm)
    r.qk_norm_rope_backward(d_qkv, v.raw, v.qk_rstd, w + "q_norm", w + "k_norm");
  else
    r.rope_backward(d_qkv);
  if (s.qkv_bias) r.bias_backward(d_qkv, w + "bq", W);
  const Value d_normed = r.gradient_of_part(v.normed, "d_normed", C);
  r.linear_backward_to_part(d_normed, d_qkv, v.whole, w + "wq", W, C);
  r.rmsnorm_backward(d_stream, d_normed, v.x, w + "norm", v.rstd, true);
}

}  // namespace

Segment attention_segment(const ModelShape& s, int layer) {
  Recorder r(s, fmt::format("layers.{}.attention", layer), layer);
  const std::string w = fmt::format("layers.{}.attention.", layer);
  const Attention v = forward(r, w);
  if (r.backward()) backward(r, w, v);
  return r.take();
}

}  // namespace tessera
