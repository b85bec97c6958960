// The MLP of a layer.
#include <fmt/format.h>

#include "model/axes/tensor.hpp"
#include "model/calls/activations.hpp"
#include "model/calls/norms.hpp"
#include "model/calls/products.hpp"

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
              .whole = whole_of(r, normed, "normed_whole", C),
              .gate_up = r.value("gate_up", {M, 2 * F}),
              .activated = r.value("activated", {M, F})};
  rmsnorm(r, v.normed, v.rstd, v.x, w + "norm");
  gather_rows(r, v.whole, v.normed);
  linear(r, v.gate_up, v.whole, w + "w_gate", 2 * F, C);
  swiglu(r, v.activated, v.gate_up, M, F);
  linear_to_stream(r, r.stream_out(), v.activated, w + "w_down", C, F, v.x);
  return v;
}

void backward(Recorder& r, const std::string& w, const Mlp& v) {
  const std::int64_t M = r.s.tokens(), C = r.s.C, F = r.s.F;
  const Value d_stream = r.d_stream();  // of out, in the end of x
  const Value d_out = whole_of(r, d_stream, "d_out", C), d_activated = r.value("d_activated", {M, F});
  gather_rows(r, d_out, d_stream);
  will_need(r, v.whole);
  input_gradient(r, d_activated, d_out, w + "w_down", C, F);
  // What is not needed again gives its place: gate and up to their gradient, that of the activation to the activation, which the pass that
  // reads both makes beside it. So no pass of its own makes it, and nobody keeps it.
  const Value d_gate_up = v.gate_up, activated = d_activated;
  const Value d_normed = gradient_of_part(r, v.normed, "d_normed", C);
  swiglu_backward(r, d_gate_up, d_activated, v.gate_up, M, F, activated);
  weight_gradient(r, d_out, activated, w + "w_down", C, F);
  linear_backward_to_part(r, d_normed, d_gate_up, v.whole, w + "w_gate", 2 * F, C);
  rmsnorm_backward(r, d_stream, d_normed, v.x, w + "norm", v.rstd, true);
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
