// The feed-forward part of a layer with experts.
#include <fmt/format.h>

#include "model/axes/block.hpp"
#include "model/axes/experts.hpp"
#include "model/calls/activations.hpp"
#include "model/calls/products.hpp"

namespace tessera {
namespace {

/// The expert that takes every token (Qwen-MoE, DeepSeek-V3).
struct Shared {
  Value gate_up;    ///< (M,2S)
  Value activated;  ///< (M,S)
  Value out;        ///< (M,C)
};

struct Moe {
  BlockEnds ends;
  Value logits;     ///< (M,E) fp32; with a shared expert that has a gate (M,E+1), the last its
  Value experts;    ///< (M,k) int32
  Value weights;    ///< (M,k) fp32; with such a gate (M,k+1)
  Dispatch to;      ///< which rows are whose
  Value counts;     ///< (parts,E) int32: choices of the whole micro-batch
  Arrivals here;    ///< which of them come to this rank's experts
  Value rows;       ///< (R,C): of each choice its token's
  Value gate_up;    ///< (R,2F)
  Value activated;  ///< (R,F)
  Value out;        ///< (R,C)
  Shared shared;    ///< absent where there is none
};

/// Names of tensors: those of a product of all experts of this rank are called as the first one's.
struct Weights {
  std::string block, router, router_bias, gate, down, shared_gate, shared_down;
  std::string b_router, b_gate, b_down;  ///< of products, where they have biases; else ""
  Weights(const std::string& w, std::int64_t first, bool biased)
      : block(w),
        router(w + "router"),
        router_bias(w + "router_bias"),
        gate(fmt::format("{}experts.{}.w_gate", w, first)),
        down(fmt::format("{}experts.{}.w_down", w, first)),
        shared_gate(w + "shared.w_gate"),
        shared_down(w + "shared.w_down"),
        b_router(biased ? w + "b_router" : ""),
        b_gate(biased ? fmt::format("{}experts.{}.b_gate", w, first) : ""),
        b_down(biased ? fmt::format("{}experts.{}.b_down", w, first) : "") {}
};

std::int64_t logits_of_token(const Router& e) { return e.E + (e.weighs_shared() ? 1 : 0); }
std::int64_t weights_of_token(const Router& e) { return e.k + (e.weighs_shared() ? 1 : 0); }

Shared forward_shared(Recorder& r, const Weights& w, Value normed) {
  const std::int64_t M = r.s.tokens(), C = r.s.C, S = r.s.router.S;
  if (S == 0) return {};
  const Shared v{.gate_up = r.value("shared_gate_up", {M, 2 * S}),
                 .activated = r.remade("shared_activated", {M, S}),
                 .out = r.value("shared_out", {M, C})};
  linear(r, v.gate_up, normed, w.shared_gate, 2 * S, C);
  swiglu(r, v.activated, v.gate_up, M, S);
  linear(r, v.out, v.activated, w.shared_down, C, S);
  return v;
}

/// Between tokens and experts that other ranks have, rows travel there and back (axes/experts.hpp).
/// out = x + sum over a token's experts of weight * expert(norm(x)), where an expert is w_down(act(gate) * up) of [gate; up] = [w_gate;
/// w_up](.), products with biases where they have them; norms as the block has them.
Moe moe_forward(Recorder& r, const Weights& w) {
  const Router& e = r.s.router;
  const std::int64_t M = r.s.tokens(), C = r.s.C, F = e.F, R = r.s.arriving_rows(), columns = logits_of_token(e);
  Moe v{.ends = block_ends(r),
        .logits = r.value("logits", {M, columns}, DType::f32),
        .experts = r.value("experts", {M, e.k}, DType::u32),
        .weights = r.value("weights", {M, weights_of_token(e)}, DType::f32),
        .to = {},
        .counts = {},
        .here = {},
        // What would have to be exchanged again is kept as other values are.
        .rows = r.s.ep == 1 ? r.remade("rows", {R, C}) : r.value("rows", {R, C}),
        .gate_up = r.value("gate_up", {R, 2 * F}),
        .activated = r.remade("activated", {R, F}),
        .out = r.value("out", {R, C}),
        .shared = {}};
  const Value input = v.ends.input;
  enter_block(r, v.ends, w.block);
  linear(r, v.logits, input, w.router, columns, C, {.bias = w.b_router, .fp32 = true});
  router(r, v.experts, v.weights, v.logits, e.biased ? r.weight(w.router_bias) : Value{});
  v.to = dispatch(r, v.experts);
  v.counts = counts_of_all(r, v.to);
  const Value labels = send_labels(r, v.to, v.weights);
  router_totals(r, v.logits, v.experts, v.counts, v.to);
  send_rows(r, input, v.to);
  v.here = arrivals(r, labels, v.to);
  take_rows(r, v.rows, input, v.to, v.here);
  expert_linear(r, v.gate_up, v.rows, v.here, w.gate, 2 * F, C);
  if (e.product_bias) add_expert_bias(r, v.gate_up, v.here, w.b_gate, 2 * F);
  swiglu(r, v.activated, v.gate_up, R, F);
  expert_linear(r, v.out, v.activated, v.here, w.down, C, F);
  if (e.product_bias) add_expert_bias(r, v.out, v.here, w.b_down, C);
  const Value returned = return_rows(r, v.out, v.here);
  v.shared = forward_shared(r, w, input);
  const bool at_once = r.s.block.joins_at_once();
  combine_rows(r, at_once ? r.stream_out() : v.ends.made, returned, v.to,
               {.weights = v.weights, .shared = v.shared.out, .add = at_once ? v.ends.x : Value{}});
  if (!at_once) join_stream(r, v.ends, w.block);
  return v;
}

/// What comes to normed from the shared expert, (M,C); its weights' gradients join d_weights.
Value backward_shared(Recorder& r, const Weights& w, const Moe& v, Value d_weights, Value d_made) {
  const std::int64_t M = r.s.tokens(), C = r.s.C, S = r.s.router.S;
  if (S == 0) return {};
  const Value d_activated = r.value("d_shared_activated", {M, S}), d_normed = r.value("d_shared_normed", {M, C});
  input_gradient(r, d_activated, d_made, w.shared_down, C, S);
  if (r.s.router.weighs_shared()) weigh_shared(r, d_weights, d_activated, v.shared.activated, v.weights);
  weight_gradient(r, d_made, v.shared.activated, w.shared_down, C, S);
  const Value d_gate_up = v.shared.gate_up;  // which is not needed again: its gradient takes its place
  swiglu_backward(r, d_gate_up, d_activated, v.shared.gate_up, M, S);
  linear_backward(r, d_normed, d_gate_up, v.ends.input, w.shared_gate, 2 * S, C);
  return d_normed;
}

/// No output of an expert is kept: the gradient of what it counts for comes from its inputs (weigh_rows).
void backward(Recorder& r, const Weights& w, const Moe& v) {
  const Router& e = r.s.router;
  const std::int64_t M = r.s.tokens(), C = r.s.C, F = e.F, R = r.s.arriving_rows(), columns = logits_of_token(e);
  const Value d_made = enter_block_backward(r, v.ends, w.block);
  const Value d_out = r.value("d_out", {R, C}), d_activated = r.value("d_activated", {R, F});
  const Value d_weights = r.value("d_weights", {M, weights_of_token(e)}, DType::f32), d_logits = r.value("d_logits", {M, columns});
  send_rows(r, d_made, v.to);
  take_rows(r, d_out, d_made, v.to, v.here);
  expert_input_gradient(r, d_activated, d_out, v.here, w.down, C, F);
  weigh_rows(r, d_weights, d_activated, v.activated, v.weights, v.to, v.here, d_out, w.b_down);
  expert_weight_gradient(r, d_out, v.activated, v.here, w.down, C, F);
  // What is not needed again gives its place to a gradient.
  const Value d_gate_up = v.gate_up, d_rows = r.s.ep == 1 ? v.rows : d_out, d_input = gradient_of_input(r, v.ends);
  swiglu_backward(r, d_gate_up, d_activated, v.gate_up, R, F);
  if (e.product_bias) expert_bias_gradient(r, d_gate_up, v.here, w.b_gate, 2 * F, {});
  const Value d_returned = expert_backward_to_rows(r, d_rows, d_gate_up, v.rows, v.here, w.gate, 2 * F, C);
  collect_weights(r, d_weights, v.to);
  const Value d_shared = backward_shared(r, w, v, d_weights, d_made);
  router_backward(r, d_logits, d_weights, v.weights, v.experts, v.logits, v.counts);
  if (e.product_bias) bias_backward(r, d_logits, w.b_router, columns);
  linear_backward(r, d_input, d_logits, v.ends.input, w.router, columns, C);
  combine_rows(r, d_input, d_returned, v.to, {.shared = d_shared, .add = d_input});
  leave_block_backward(r, v.ends, w.block, d_input);
}

}  // namespace

Segment moe_segment(const ModelShape& shape, int layer) {
  const ModelShape s = on_own_rows(shape);
  Recorder r(s, fmt::format("layers.{}.moe", layer), layer);
  const Weights w(fmt::format("layers.{}.moe.", layer), s.first_expert(), s.router.product_bias);
  const Moe v = moe_forward(r, w);
  if (r.backward()) backward(r, w, v);
  return r.take();
}

}  // namespace tessera
