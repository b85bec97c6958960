// The MLP of a layer.
#include <fmt/format.h>

#include "model/recorder.hpp"

namespace tessera {
namespace {

struct Mlp {
  Value x;          ///< (M,C)
  Value normed;     ///< (M,C)
  Value rstd;       ///< (M) fp32
  Value gate_up;    ///< (M,2F): gate, then up
  Value activated;  ///< (M,F)
};

/// out = x + w_down(silu(gate) * up), where [gate; up] = [w_gate; w_up](norm(x)).
Mlp forward(Recorder& r, const std::string& w) {
  const std::int64_t M = r.s.tokens(), C = r.s.C, F = r.s.F;
  const Mlp v{.x = r.stream_in(),
              .normed = r.remade("normed", {M, C}),
              .rstd = r.value("rstd", {M}, DType::f32),
              .gate_up = r.value("gate_up", {M, 2 * F}),
              .activated = r.remade("activated", {M, F})};
  r.rmsnorm(v.normed, v.rstd, v.x, w + "norm");
  r.linear(v.gate_up, v.normed, w + "w_gate", 2 * F, C);
  r.swiglu(v.activated, v.gate_up, M, F);
  r.linear(r.stream_out(), v.activated, w + "w_down", C, F, {.add = v.x});
  return v;
}

void backward(Recorder& r, const std::string& w, const Mlp& v) {
  const std::int64_t M = r.s.tokens(), C = r.s.C, F = r.s.F;
  const Value d_stream = r.d_stream();  // of out, in the end of x
  const Value d_activated = r.value("d_activated", {M, F});
  r.linear_backward(d_activated, d_stream, v.activated, w + "w_down", C, F);
  const Value d_gate_up = v.gate_up, d_normed = v.normed;  // which are not needed again: their gradients take their places
  r.swiglu_backward(d_gate_up, d_activated, v.gate_up, M, F);
  r.linear_backward(d_normed, d_gate_up, v.normed, w + "w_gate", 2 * F, C);
  r.rmsnorm_backward(d_stream, d_normed, v.x, w + "norm", v.rstd, true);
}

}  // namespace

Segment mlp_segment(const ModelShape& s, int layer) {
  Recorder r(s, fmt::format("layers.{}.mlp", layer), layer);
  const std::string w = fmt::format("layers.{}.mlp.", layer);
  const Mlp v = forward(r, w);
  if (r.backward()) backward(r, w, v);
  return r.take();
}

}  // namespace tessera
