// The MLP of a layer.
#include <fmt/format.h>

#include "model/axes/block.hpp"
#include "model/axes/tensor.hpp"
#include "model/calls/activations.hpp"
#include "model/calls/products.hpp"

namespace tessera {
namespace {

struct Mlp {
  BlockEnds ends;
  Value whole;      ///< (M,C): all ranks' rows of what it reads
  Value gate_up;    ///< (M,2F): gate, then up; without a gate (M,F)
  Value activated;  ///< (M,F)
};

/// The first of the tensors that make gate and up, or up alone.
std::string first_of(const ModelShape& s, const std::string& w, const char* kind) { return w + kind + (s.gated ? "gate" : "up"); }

/// out = x + w_down(act(gate) * up) + b_down, where [gate; up] = [w_gate; w_up](norm(x)) + b, or w_down(act(up)) + b_down; norms and biases
/// as the block has them.
Mlp mlp_forward(Recorder& r, const std::string& w) {
  const std::int64_t M = r.s.tokens(), C = r.s.C, F = r.s.F;
  const BlockEnds ends = block_ends(r);
  const Mlp v{.ends = ends,
              .whole = whole_of(r, ends.input, "normed_whole", C),
              .gate_up = r.value("gate_up", {M, r.s.up_width()}),
              .activated = r.value("activated", {M, F})};
  enter_block(r, ends, w);
  gather_rows(r, v.whole, ends.input);
  linear(r, v.gate_up, v.whole, first_of(r.s, w, "w_"), r.s.up_width(), C, {.bias = r.s.mlp_bias ? first_of(r.s, w, "b_") : ""});
  activate(r, v.activated, v.gate_up, M, F, w);
  leave_block(r, ends, w, v.activated, {w + "w_down", F, r.s.mlp_bias ? w + "b_down" : ""});
  return v;
}

void backward(Recorder& r, const std::string& w, const Mlp& v) {
  const std::int64_t M = r.s.tokens(), C = r.s.C, F = r.s.F;
  const Value d_made = enter_block_backward(r, v.ends, w);
  const Value d_out = whole_of(r, d_made, "d_out", C), d_activated = r.value("d_activated", {M, F});
  if (r.s.mlp_bias) bias_backward(r, d_made, w + "b_down", C, r.s.rows());
  gather_rows(r, d_out, d_made);
  will_need(r, v.whole);
  input_gradient(r, d_activated, d_out, w + "w_down", C, F);
  // What is not needed again gives its place: gate and up to their gradient, that of the activation to the activation, which the pass that
  // reads both makes beside it. So no pass of its own makes it, and nobody keeps it.
  const Value d_gate_up = v.gate_up, activated = d_activated;
  const Value d_input = gradient_of_input(r, v.ends);
  activate_backward(r, d_gate_up, d_activated, v.gate_up, M, F, activated, w);
  weight_gradient(r, d_out, activated, w + "w_down", C, F);
  if (r.s.mlp_bias) bias_backward(r, d_gate_up, first_of(r.s, w, "b_"), r.s.up_width());
  linear_backward_to_part(r, d_input, d_gate_up, v.whole, first_of(r.s, w, "w_"), r.s.up_width(), C);
  leave_block_backward(r, v.ends, w, d_input);
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
