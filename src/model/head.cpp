// Head segment: final norm, logits, loss. Its backward pass computes loss and gradient together; its forward pass is the loss alone.
#include <algorithm>

#include "kernels/cross_entropy/products.hpp"
#include "model/linear.hpp"
#include "model/norm.hpp"
#include "model/segment.hpp"

namespace tessera {
namespace {

using kernels::Context;

struct ForwardOperands {
  enum : int { x, losses, targets, normed, rstd, norm, weight, workspace, packed_logits };
};
struct BackwardOperands {
  enum : int { d_stream, x, losses, targets, normed, rstd, d_normed, norm, weight, d_norm, d_weight, workspace, packed_logits, packed_d_x };
};

/// The losses operand: M fp32 values, padded to 8 bytes, then their sum as a double.
std::int64_t losses_bytes(const ModelShape& s) { return round_up(4 * s.tokens(), 8) + 8; }
double* loss_sum(const ModelShape& s, void* losses) {
  return reinterpret_cast<double*>(static_cast<std::byte*>(losses) + round_up(4 * s.tokens(), 8));
}

kernels::LinearCrossEntropy loss_arguments(const ModelShape& s) {
  return {.M = s.tokens(), .C = s.C, .V = s.V, .chunk = s.loss_chunk, .dtype = s.dtype};
}

/// The size query looks only at which outputs are wanted.
std::size_t loss_workspace(const ModelShape& s, bool gradients) {
  auto arguments = loss_arguments(s);
  float present = 0;
  if (gradients) arguments.d_x = &present, arguments.d_weight = &present;
  return kernels::linear_cross_entropy_workspace_bytes(arguments, s.backend);
}

void forward(const SegmentRun& r, std::size_t workspace_bytes) {
  using O = ForwardOperands;
  const kernels::Context context = r.with_workspace(O::workspace, workspace_bytes);
  norm::forward(context, r, {.out = O::normed, .rstd = O::rstd, .x = O::x, .weight = O::norm});
  auto loss = loss_arguments(r.shape);
  loss.losses = r.get<float>(O::losses), loss.loss_sum = loss_sum(r.shape, r.get(O::losses));
  loss.x = r.get(O::normed), loss.weight = r.get(O::weight), loss.targets = r.get<std::int32_t>(O::targets);
  loss.packed_logits = r.get(O::packed_logits);
  linear_cross_entropy(context, loss);
}

void backward(const SegmentRun& r, std::size_t workspace_bytes) {
  using O = BackwardOperands;
  const ModelShape& s = r.shape;
  const kernels::Context context = r.with_workspace(O::workspace, workspace_bytes);
  norm::forward(context, r, {.out = O::normed, .rstd = O::rstd, .x = O::x, .weight = O::norm});
  if (!r.adds(O::d_weight)) fill_zero(context, r.get(O::d_weight), static_cast<std::size_t>(s.V * s.C) * sizeof(float));
  auto loss = loss_arguments(s);
  loss.losses = r.get<float>(O::losses), loss.loss_sum = loss_sum(s, r.get(O::losses));
  loss.d_x = r.get(O::d_normed), loss.d_weight = r.get<float>(O::d_weight);
  loss.x = r.get(O::normed), loss.weight = r.get(O::weight), loss.targets = r.get<std::int32_t>(O::targets), loss.grad_scale = r.grad_scale;
  loss.packed_logits = r.get(O::packed_logits), loss.packed_d_x = r.get(O::packed_d_x);
  linear_cross_entropy(context, loss);
  norm::backward(
      context, r,
      {.d_x = O::d_stream, .d_weight = O::d_norm, .d_out = O::d_normed, .x = O::x, .weight = O::norm, .rstd = O::rstd, .residual = false});
}

}  // namespace

Segment head_segment(const ModelShape& s) {
  using namespace segment;
  const std::string matrix = s.tied ? "embedding.weight" : "head.weight";
  const std::int64_t stream = s.bytes_of(s.tokens() * s.C), losses = losses_bytes(s);
  const std::size_t f = loss_workspace(s, false);
  const std::size_t b = std::max(loss_workspace(s, true), norm::backward_workspace_bytes(s));
  const double flops = linear::flops({s.tokens(), s.V, s.C, s.dtype});
  const Operand targets{OperandKind::targets, Access::read, "targets", 4 * s.tokens(), {}},
      loss_values{OperandKind::losses, Access::write, "losses", losses, {}},
      packed_logits = packed_weight(s, matrix, kernels::logits_product(loss_arguments(s), {.m = s.loss_chunk}));

  Segment result{.name = "head", .layer = -1, .forward = {}, .backward = {}};
  result.forward.operands = {
      stream_in(s),   loss_values,  targets,      scratch("normed", stream), scratch("rstd", 4 * s.tokens()), weight("head.norm"),
      weight(matrix), workspace(f), packed_logits};
  result.backward.operands = {d_stream(s, Access::write),
                              stream_in(s),
                              loss_values,
                              targets,
                              scratch("normed", stream),
                              scratch("rstd", 4 * s.tokens()),
                              scratch("d_normed", stream),
                              weight("head.norm"),
                              weight(matrix),
                              gradient("head.norm"),
                              gradient(matrix),
                              workspace(b),
                              packed_logits,
                              packed_weight(s, matrix, kernels::d_x_product(loss_arguments(s), {.m = s.loss_chunk}))};
  result.forward.run = [f](const SegmentRun& r) { forward(r, f); };
  result.backward.run = [b](const SegmentRun& r) { backward(r, b); };
  result.forward.flops = flops;
  result.backward.flops = 3 * flops;
  return result;
}

std::vector<Segment> model_segments(const ModelShape& s) {
  std::vector<Segment> segments{embedding_segment(s)};
  for (int layer = 0; layer < s.L; ++layer) {
    segments.push_back(attention_segment(s, layer));
    segments.push_back(mlp_segment(s, layer));
  }
  segments.push_back(head_segment(s));
  return segments;
}

}  // namespace tessera
