// MLP segment: out = x + w_down(swiglu([w_gate; w_up](norm(x)))).
#include <fmt/format.h>

#include <algorithm>

#include "kernels/swiglu/swiglu.hpp"
#include "model/linear.hpp"
#include "model/norm.hpp"
#include "model/segment.hpp"

namespace tessera {
namespace {

using kernels::Context;

linear::Dims up_dims(const ModelShape& s) { return {s.tokens(), 2 * s.F, s.C, s.dtype}; }
linear::Dims down_dims(const ModelShape& s) { return {s.tokens(), s.C, s.F, s.dtype}; }

struct ForwardOperands {
  enum : int { x, out, gate_up, rstd, normed, activated, norm, w_up, w_down, workspace, packed_up, packed_down };
};
struct BackwardOperands {
  enum : int {
    d_stream,
    x,
    gate_up,
    rstd,
    normed,
    activated,
    d_activated,
    norm,
    w_up,
    w_down,
    d_norm,
    d_w_up,
    d_w_down,
    workspace,
    packed_up,
    packed_down
  };
};

void forward(const SegmentRun& r, std::size_t workspace_bytes) {
  using O = ForwardOperands;
  const ModelShape& s = r.shape;
  const kernels::Context context = r.with_workspace(O::workspace, workspace_bytes);
  norm::forward(context, r, {.out = O::normed, .rstd = O::rstd, .x = O::x, .weight = O::norm});
  gemm(context, linear::forward(up_dims(s), r.get(O::gate_up), r.get(O::normed), {r.get(O::w_up), r.get(O::packed_up)}));
  swiglu_forward(context, {.out = r.get(O::activated), .gate_up = r.get(O::gate_up), .M = s.tokens(), .F = s.F, .dtype = s.dtype});
  auto down = linear::forward(down_dims(s), r.get(O::out), r.get(O::activated), {r.get(O::w_down), r.get(O::packed_down)});
  down.addend = r.get(O::x);
  gemm(context, down);
}

void backward(const SegmentRun& r, std::size_t workspace_bytes) {
  using O = BackwardOperands;
  const ModelShape& s = r.shape;
  const kernels::Context context = r.with_workspace(O::workspace, workspace_bytes);
  // The activation is computed again from gate and up rather than saved.
  swiglu_forward(context, {.out = r.get(O::activated), .gate_up = r.get(O::gate_up), .M = s.tokens(), .F = s.F, .dtype = s.dtype});
  gemm(context,
       linear::weight_gradient(down_dims(s), r.get<float>(O::d_w_down), r.get(O::d_stream), r.get(O::activated), r.adds(O::d_w_down)));
  gemm(context, linear::input_gradient(down_dims(s), r.get(O::d_activated), r.get(O::d_stream), {r.get(O::w_down), r.get(O::packed_down)}));
  // gate_up is not needed again: its gradient takes its place.
  swiglu_backward(context, {.d_gate_up = r.get(O::gate_up),
                            .d_out = r.get(O::d_activated),
                            .gate_up = r.get(O::gate_up),
                            .M = s.tokens(),
                            .F = s.F,
                            .dtype = s.dtype});

  norm::forward(context, r, {.out = O::normed, .rstd = O::rstd, .x = O::x, .weight = O::norm});
  gemm(context, linear::weight_gradient(up_dims(s), r.get<float>(O::d_w_up), r.get(O::gate_up), r.get(O::normed), r.adds(O::d_w_up)));
  gemm(context, linear::input_gradient(up_dims(s), r.get(O::normed), r.get(O::gate_up), {r.get(O::w_up), r.get(O::packed_up)}));

  norm::backward(
      context, r,
      {.d_x = O::d_stream, .d_weight = O::d_norm, .d_out = O::normed, .x = O::x, .weight = O::norm, .rstd = O::rstd, .residual = true});
}

}  // namespace

Segment mlp_segment(const ModelShape& s, int layer) {
  using namespace segment;
  const std::string prefix = fmt::format("layers.{}.mlp.", layer);
  const std::int64_t M = s.tokens(), stream = s.bytes_of(M * s.C), gate_up = s.bytes_of(M * 2 * s.F), activated = s.bytes_of(M * s.F);
  const std::size_t gemms = std::max(linear::workspace_bytes(up_dims(s), s.backend), linear::workspace_bytes(down_dims(s), s.backend));
  const std::size_t b = std::max(gemms, norm::backward_workspace_bytes(s));
  const double flops = linear::flops(up_dims(s)) + linear::flops(down_dims(s));

  Segment result{.name = fmt::format("layers.{}.mlp", layer), .layer = layer, .forward = {}, .backward = {}};
  result.forward.operands = {stream_in(s),
                             stream_out(s),
                             saved("gate_up", Access::write, gate_up),
                             saved("rstd", Access::write, 4 * M),
                             scratch("normed", stream),
                             scratch("activated", activated),
                             weight(prefix + "norm"),
                             weight(prefix + "w_gate"),
                             weight(prefix + "w_down"),
                             workspace(gemms),
                             packed_weight(s, prefix + "w_gate", linear::packed_forward(up_dims(s))),
                             packed_weight(s, prefix + "w_down", linear::packed_forward(down_dims(s)))};
  result.backward.operands = {d_stream(s, Access::add),
                              stream_in(s),
                              saved("gate_up", Access::add, gate_up),
                              saved("rstd", Access::add, 4 * M),
                              scratch("normed", stream),
                              scratch("activated", activated),
                              scratch("d_activated", activated),
                              weight(prefix + "norm"),
                              weight(prefix + "w_gate"),
                              weight(prefix + "w_down"),
                              gradient(prefix + "norm"),
                              gradient(prefix + "w_gate"),
                              gradient(prefix + "w_down"),
                              workspace(b),
                              packed_weight(s, prefix + "w_gate", linear::packed_input_gradient(up_dims(s))),
                              packed_weight(s, prefix + "w_down", linear::packed_input_gradient(down_dims(s)))};
  result.forward.run = [gemms](const SegmentRun& r) { forward(r, gemms); };
  result.backward.run = [b](const SegmentRun& r) { backward(r, b); };
  result.forward.flops = flops;
  result.backward.flops = 2 * flops;
  return result;
}

}  // namespace tessera
