// The MLP of a layer.
#include <fmt/format.h>

#include "model/record/recorder.hpp"

namespace tessera {
namespace {

struct Mlp {
  Value x;          ///< (R,C)
  Value normed;     ///< (R,C)
  Value rstd;       ///< (R) fp32
  Value whole;      ///< (M,C): all ranks' rows of normed
  Value gate_up;    ///< (M,2F): gate, then up
  Value activated;  ///< (M,F)
};

/// out = x + w_down(silu(gate) * up), where [gate; up] = [w_gate; w_up](norm(x)).
Mlp mlp_forward(Recorder& r, const std::string& w) {
  const std::int64_t M = r.s.tokens(), R = r.s.rows(), C = r.s.C, F = r.s.F;
  const Value x = r.stream_in(), normed = r.remade("normed", {R, C});
  const Mlp v{.x = x,
              .normed = normed,
              .rstd = r.value("rstd", {R}, DType::f32),
              .whole = r.whole_of(normed, "normed_whole", C),
              .gate_up = r.value("gate_up", {M, 2 * F}),
              .activated = r.remade("activated", {M, F})};
  r.rmsnorm(v.normed, v.rstd, v.x, w + "norm");
  r.gather_rows(v.whole, v.normed);
  r.linear(v.gate_up, v.whole, w + "w_gate", 2 * F, C);
  r.swiglu(v.activated, v.gate_up, M, F);
  r.linear_to_stream(r.stream_out(), v.activated, w + "w_down", C, F, v.x);
  return v;
}

void backward(Recorder& r, const std::string& w, const Mlp& v) {
  const std::int64_t M = r.s.tokens(), C = r.s.C, F = r.s.F;
  const Value d_stream = r.d_stream();  // of out, in the end of x
  const Value d_out = r.whole_of(d_stream, "d_out", C), d_activated = r.value("d_activated", {M, F});
  r.gather_rows(d_out, d_stream);
  r.will_need(v.whole);
  r.linear_backward(d_activated, d_out, v.activated, w + "w_down", C, F);
  const Value d_gate_up = v.gate_up;  // which is not needed again: its gradient takes its place
  const Value d_normed = r.gradient_of_part(v.normed, "d_normed", C);
  r.swiglu_backward(d_gate_up, d_activated, v.gate_up, M, F);
  r.linear_backward_to_part(d_normed, d_gate_up, v.whole, w + "w_gate", 2 * F, C);
  r.rmsnorm_backward(d_stream, d_normed, v.x, w + "norm", v.rstd, true);
}

}  // namespace

Segment mlp_segment(const ModelShape& s, int layer) {
  Recorder r(s, fmt::format("layers.{}.mlp", layer), layer);
  const std::string w = fmt::format("layers.{}.mlp.", layer);
  const Mlp v = mlp_forward(r, w);
  if (r.backward()) backward(r, w, v);
  return r.take();
}

}  // namespace tessera
