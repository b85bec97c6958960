// Attention segment: out = x + wo(attention(rope(qk_norm(wqkv(norm(x)) + b)))).
#include "kernels/attention/attention.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/elementwise/elementwise.hpp"
#include "kernels/qk_norm_rope/qk_norm_rope.hpp"
#include "kernels/rope/rope.hpp"
#include "model/linear.hpp"
#include "model/norm.hpp"
#include "model/segment.hpp"

namespace tessera {
namespace {

using kernels::Context;

linear::Dims qkv_dims(const ModelShape& s) { return {s.tokens(), s.qkv_width(), s.C, s.dtype}; }
linear::Dims out_dims(const ModelShape& s) { return {s.tokens(), s.C, s.H * s.D, s.dtype}; }

kernels::Rope rope_arguments(const ModelShape& s, void* x, const float* table, bool inverse) {
  return {.x = x,
          .table = table,
          .M = s.tokens(),
          .T = s.T,
          .heads = s.H + s.G,
          .D = s.D,
          .stride = s.qkv_width(),
          .inverse = inverse,
          .dtype = s.dtype};
}
kernels::QkNormRopeBackward qk_norm_rope_arguments(const ModelShape& s) {
  return {.M = s.tokens(), .T = s.T, .H = s.H, .G = s.G, .D = s.D, .dtype = s.dtype};
}

/// Operands of the forward pass, in order. With QK-norm or bias the later ones exist; without, their index is not used.
struct ForwardOperands {
  enum : int { x, out, qkv, context, lse, rstd, normed, norm, wqkv, wo, table, workspace, packed_qkv, packed_o, optional };
  int bias = -1, q_norm = -1, k_norm = -1, raw = -1, qk_rstd = -1;
  explicit ForwardOperands(const ModelShape& s) {
    int next = optional;
    if (s.qkv_bias) bias = next++;
    if (s.qk_norm) q_norm = next++, k_norm = next++, raw = next++, qk_rstd = next++;
  }
};

struct BackwardOperands {
  enum : int {
    d_stream,
    x,
    qkv,
    context,
    lse,
    rstd,
    normed,
    d_context,
    d_qkv,
    norm,
    wqkv,
    wo,
    d_norm,
    d_wqkv,
    d_wo,
    table,
    workspace,
    packed_qkv,
    packed_o,
    optional
  };
  int d_bias = -1, q_norm = -1, k_norm = -1, raw = -1, qk_rstd = -1, d_q_norm = -1, d_k_norm = -1;
  explicit BackwardOperands(const ModelShape& s) {
    int next = optional;
    if (s.qkv_bias) d_bias = next++;
    if (s.qk_norm) q_norm = next++, k_norm = next++, raw = next++, qk_rstd = next++, d_q_norm = next++, d_k_norm = next++;
  }
};

void forward(const SegmentRun& r, std::size_t workspace_bytes) {
  using O = ForwardOperands;
  const ModelShape& s = r.shape;
  const O o(s);
  const kernels::Context context = r.with_workspace(O::workspace, workspace_bytes);

  norm::forward(context, r, {.out = O::normed, .rstd = O::rstd, .x = O::x, .weight = O::norm});

  void* projected = s.qk_norm ? r.get(o.raw) : r.get(O::qkv);
  const linear::Weight wqkv{r.get(O::wqkv), r.get(O::packed_qkv)}, wo{r.get(O::wo), r.get(O::packed_o)};
  gemm(context, linear::forward(qkv_dims(s), projected, r.get(O::normed), wqkv, s.qkv_bias ? r.get(o.bias) : nullptr));
  if (s.qk_norm) {
    // The rows before the norm are kept for the backward pass.
    qk_norm_rope_forward(context, {.out = r.get(O::qkv),
                                   .rstd = r.get<float>(o.qk_rstd),
                                   .x = projected,
                                   .q_norm = r.get(o.q_norm),
                                   .k_norm = r.get(o.k_norm),
                                   .table = r.get<float>(O::table),
                                   .M = s.tokens(),
                                   .T = s.T,
                                   .H = s.H,
                                   .G = s.G,
                                   .D = s.D,
                                   .eps = s.norm_eps,
                                   .dtype = s.dtype});
  } else {
    rope(context, rope_arguments(s, r.get(O::qkv), r.get<float>(O::table), false));
  }
  attention_forward(context, {.out = r.get(O::context), .lse = r.get<float>(O::lse), .qkv = r.get(O::qkv), .shape = attention_shape(s)});

  auto output = linear::forward(out_dims(s), r.get(O::out), r.get(O::context), wo);
  output.addend = r.get(O::x);
  gemm(context, output);
}

/// d_qkv, after the attention kernel, becomes the gradient of the projection's output: rotated back, and through QK-norm.
void backward_heads(const Context& context, const SegmentRun& r) {
  using O = BackwardOperands;
  const ModelShape& s = r.shape;
  const O o(s);
  if (!s.qk_norm) return rope(context, rope_arguments(s, r.get(O::d_qkv), r.get<float>(O::table), true));
  for (const int d_weight : {o.d_q_norm, o.d_k_norm})
    if (!r.adds(d_weight)) fill_zero(context, r.get(d_weight), static_cast<std::size_t>(s.D) * sizeof(float));
  auto heads = qk_norm_rope_arguments(s);
  heads.d_qkv = r.get(O::d_qkv), heads.d_q_norm = r.get<float>(o.d_q_norm), heads.d_k_norm = r.get<float>(o.d_k_norm);
  heads.x = r.get(o.raw), heads.q_norm = r.get(o.q_norm), heads.k_norm = r.get(o.k_norm);
  heads.rstd = r.get<float>(o.qk_rstd), heads.table = r.get<float>(O::table);
  qk_norm_rope_backward(context, heads);
}

void backward(const SegmentRun& r, std::size_t workspace_bytes) {
  using O = BackwardOperands;
  const ModelShape& s = r.shape;
  const O o(s);
  const kernels::Context context = r.with_workspace(O::workspace, workspace_bytes);

  gemm(context, linear::weight_gradient(out_dims(s), r.get<float>(O::d_wo), r.get(O::d_stream), r.get(O::context), r.adds(O::d_wo)));
  gemm(context, linear::input_gradient(out_dims(s), r.get(O::d_context), r.get(O::d_stream), {r.get(O::wo), r.get(O::packed_o)}));
  attention_backward(context, {.d_qkv = r.get(O::d_qkv),
                               .d_out = r.get(O::d_context),
                               .qkv = r.get(O::qkv),
                               .out = r.get(O::context),
                               .lse = r.get<float>(O::lse),
                               .shape = attention_shape(s)});
  backward_heads(context, r);
  if (s.qkv_bias) {
    if (!r.adds(o.d_bias)) fill_zero(context, r.get(o.d_bias), static_cast<std::size_t>(s.qkv_width()) * sizeof(float));
    column_sums(context, {.sum = r.get<float>(o.d_bias), .x = r.get(O::d_qkv), .M = s.tokens(), .N = s.qkv_width(), .dtype = s.dtype});
  }

  // The normed input is computed again rather than saved: one pass over memory against M x C values a layer.
  norm::forward(context, r, {.out = O::normed, .rstd = O::rstd, .x = O::x, .weight = O::norm});
  gemm(context, linear::weight_gradient(qkv_dims(s), r.get<float>(O::d_wqkv), r.get(O::d_qkv), r.get(O::normed), r.adds(O::d_wqkv)));
  gemm(context, linear::input_gradient(qkv_dims(s), r.get(O::normed), r.get(O::d_qkv), {r.get(O::wqkv), r.get(O::packed_qkv)}));

  norm::backward(
      context, r,
      {.d_x = O::d_stream, .d_weight = O::d_norm, .d_out = O::normed, .x = O::x, .weight = O::norm, .rstd = O::rstd, .residual = true});
}

std::size_t forward_workspace(const ModelShape& s) {
  return std::max({linear::workspace_bytes(qkv_dims(s), s.backend, s.qkv_bias), linear::workspace_bytes(out_dims(s), s.backend),
                   kernels::attention_forward_workspace_bytes(attention_shape(s), s.backend)});
}

std::size_t backward_workspace(const ModelShape& s) {
  std::size_t bytes =
      std::max({linear::workspace_bytes(qkv_dims(s), s.backend, s.qkv_bias), linear::workspace_bytes(out_dims(s), s.backend),
                kernels::attention_backward_workspace_bytes(attention_shape(s), s.backend), norm::backward_workspace_bytes(s)});
  if (s.qkv_bias) bytes = std::max(bytes, kernels::column_sums_workspace_bytes({.M = s.tokens(), .N = s.qkv_width()}, s.backend));
  if (s.qk_norm) bytes = std::max(bytes, kernels::qk_norm_rope_backward_workspace_bytes(qk_norm_rope_arguments(s), s.backend));
  return bytes;
}

double attention_flops(const ModelShape& s) {  // causal, forward
  return 2.0 * static_cast<double>(s.B * s.H * s.D) * static_cast<double>(s.T) * static_cast<double>(s.T);
}

}  // namespace

Segment attention_segment(const ModelShape& s, int layer) {
  using namespace segment;
  const std::string prefix = fmt::format("layers.{}.attention.", layer);
  const std::int64_t M = s.tokens(), stream = s.bytes_of(M * s.C), qkv = s.bytes_of(M * s.qkv_width()), context = s.bytes_of(M * s.H * s.D);
  const std::int64_t lse = 4 * s.B * s.H * s.T, rstd = 4 * M, qk_rstd = 4 * M * (s.H + s.G);
  const std::size_t f = forward_workspace(s), b = backward_workspace(s);
  const double gemms = linear::flops(qkv_dims(s)) + linear::flops(out_dims(s));

  Segment result{.name = fmt::format("layers.{}.attention", layer), .layer = layer, .forward = {}, .backward = {}};
  auto& forward_operands = result.forward.operands;
  forward_operands = {stream_in(s),
                      stream_out(s),
                      saved("qkv", Access::write, qkv),
                      saved("context", Access::write, context),
                      saved("lse", Access::write, lse),
                      saved("rstd", Access::write, rstd),
                      scratch("normed", stream),
                      weight(prefix + "norm"),
                      weight(prefix + "wq"),
                      weight(prefix + "wo"),
                      {OperandKind::rope_table, Access::read, "rope", 0, {}},
                      workspace(f),
                      packed_weight(s, prefix + "wq", linear::packed_forward(qkv_dims(s))),
                      packed_weight(s, prefix + "wo", linear::packed_forward(out_dims(s)))};
  auto& backward_operands = result.backward.operands;
  backward_operands = {d_stream(s, Access::add),
                       stream_in(s),
                       saved("qkv", Access::read, qkv),
                       saved("context", Access::read, context),
                       saved("lse", Access::read, lse),
                       saved("rstd", Access::add, rstd),
                       scratch("normed", stream),
                       scratch("d_context", context),
                       scratch("d_qkv", qkv),
                       weight(prefix + "norm"),
                       weight(prefix + "wq"),
                       weight(prefix + "wo"),
                       gradient(prefix + "norm"),
                       gradient(prefix + "wq"),
                       gradient(prefix + "wo"),
                       {OperandKind::rope_table, Access::read, "rope", 0, {}},
                       workspace(b),
                       packed_weight(s, prefix + "wq", linear::packed_input_gradient(qkv_dims(s))),
                       packed_weight(s, prefix + "wo", linear::packed_input_gradient(out_dims(s)))};
  if (s.qkv_bias) {
    forward_operands.push_back(weight(prefix + "bq"));
    backward_operands.push_back(gradient(prefix + "bq"));
  }
  if (s.qk_norm) {
    for (auto* operands : {&forward_operands, &backward_operands}) {
      const Access access = operands == &forward_operands ? Access::write : Access::read;
      operands->push_back(weight(prefix + "q_norm"));
      operands->push_back(weight(prefix + "k_norm"));
      operands->push_back(saved("qkv_before_norm", access, qkv));
      operands->push_back(saved("qk_rstd", access, qk_rstd));
    }
    backward_operands.push_back(gradient(prefix + "q_norm"));
    backward_operands.push_back(gradient(prefix + "k_norm"));
  }
  result.forward.run = [f](const SegmentRun& r) { forward(r, f); };
  result.backward.run = [b](const SegmentRun& r) { backward(r, b); };
  result.forward.flops = gemms + attention_flops(s);
  result.backward.flops = 2 * gemms + 2.5 * attention_flops(s);
  return result;
}

}  // namespace tessera
