// The MLP of a layer.
#include <fmt/format.h>

#include "model/axes/block.hpp"
#include "model/calls/activations.hpp"
#include "model/calls/products.hpp"
#include "model/texts/inside.hpp"

namespace tessera {
namespace {

/// The first of the tensors that make gate and up, or up alone.
std::string first_of(const ModelShape& s, const std::string& w, const char* kind) { return w + kind + (s.block.gated ? "gate" : "up"); }

}  // namespace

MlpInside mlp_inside(Recorder& r, Value whole) {
  const std::int64_t M = r.s.tokens();
  return {.whole = whole, .gate_up = r.value("gate_up", {M, r.s.block.up_width()}), .activated = r.value("activated", {M, r.s.block.F})};
}

void feed(Recorder& r, const std::string& w, const MlpInside& v) {
  const std::int64_t M = r.s.tokens(), C = r.s.C, F = r.s.block.F;
  linear(r, v.gate_up, v.whole, first_of(r.s, w, "w_"), r.s.block.up_width(), C,
         {.bias = r.s.block.mlp_bias ? first_of(r.s, w, "b_") : ""});
  activate(r, v.activated, v.gate_up, M, F, w);
}

LeavingProduct mlp_leaving(const Recorder& r, const std::string& w, const MlpInside& v) {
  return {.y = v.activated, .matrix = w + "w_down", .K = r.s.block.F, .bias = r.s.block.mlp_bias ? w + "b_down" : ""};
}

EnteringProduct feed_backward(Recorder& r, const std::string& w, const MlpInside& v, Value d_out) {
  const std::int64_t M = r.s.tokens(), C = r.s.C, F = r.s.block.F;
  const Value d_activated = r.value("d_activated", {M, F});
  input_gradient(r, d_activated, d_out, w + "w_down", C, F);
  // What is not needed again gives its place: gate and up to their gradient, that of the activation to the activation, which the pass that
  // reads both makes beside it. So no pass of its own makes it, and nobody keeps it.
  const Value d_gate_up = v.gate_up, activated = d_activated;
  activate_backward(r, d_gate_up, d_activated, v.gate_up, M, F, activated, w);
  weight_gradient(r, d_out, activated, w + "w_down", C, F);
  if (r.s.block.mlp_bias) bias_backward(r, d_gate_up, first_of(r.s, w, "b_"), r.s.block.up_width());
  return {.d_y = d_gate_up, .matrix = first_of(r.s, w, "w_"), .N = r.s.block.up_width()};
}

/// out = x + w_down(act(gate) * up) + b_down, where [gate; up] = [w_gate; w_up](norm(x)) + b, or w_down(act(up)) + b_down; norms and biases
/// as the block has them.
Segment mlp_segment(const ModelShape& s, int layer) {
  Recorder r(s, fmt::format("layers.{}.mlp", layer), layer);
  const std::string w = fmt::format("layers.{}.mlp.", layer);
  const BlockEnds ends = block_ends(r);
  const MlpInside v = mlp_inside(r, whole_of(r, ends.input, "normed_whole", s.C));
  enter_block(r, ends, w);
  gather_rows(r, v.whole, ends.input);
  feed(r, w, v);
  leave_block(r, ends, w, {mlp_leaving(r, w, v)});
  if (!r.backward()) return r.take();

  const Value d_made = enter_block_backward(r, ends, w), d_out = whole_of(r, d_made, "d_out", s.C);
  if (s.block.mlp_bias) bias_backward(r, d_made, w + "b_down", s.C, Rows{0, s.rows()});
  gather_rows(r, d_out, d_made);
  will_need(r, v.whole);
  const EnteringProduct product = feed_backward(r, w, v, d_out);
  const Value d_input = gradient_of_input(r, ends);
  linear_backward_to_part(r, d_input, {product}, v.whole);
  leave_block_backward(r, ends, w, d_input);
  return r.take();
}

}  // namespace tessera
