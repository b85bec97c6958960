// Embedding segment: the stream begins as rows of the table.
#include "kernels/embedding/embedding.hpp"

#include "kernels/elementwise/elementwise.hpp"
#include "model/segment.hpp"

namespace tessera {
namespace {

kernels::EmbeddingBackward backward_arguments(const ModelShape& s) { return {.M = s.tokens(), .C = s.C, .V = s.V, .dtype = s.dtype}; }

struct ForwardOperands {
  enum : int { out, table, tokens };
};
struct BackwardOperands {
  enum : int { d_stream, tokens, d_table, workspace };
};

void forward(const SegmentRun& r) {
  using O = ForwardOperands;
  embedding_forward(r.context, {.out = r.get(O::out),
                                .table = r.get(O::table),
                                .tokens = r.get<std::int32_t>(O::tokens),
                                .M = r.shape.tokens(),
                                .C = r.shape.C,
                                .dtype = r.shape.dtype});
}

void backward(const SegmentRun& r, std::size_t workspace_bytes) {
  using O = BackwardOperands;
  const kernels::Context context = r.with_workspace(O::workspace, workspace_bytes);
  if (!r.adds(O::d_table)) fill_zero(context, r.get(O::d_table), static_cast<std::size_t>(r.shape.V * r.shape.C) * sizeof(float));
  auto arguments = backward_arguments(r.shape);
  arguments.d_table = r.get<float>(O::d_table), arguments.d_out = r.get(O::d_stream), arguments.tokens = r.get<std::int32_t>(O::tokens);
  embedding_backward(context, arguments);
}

}  // namespace

Segment embedding_segment(const ModelShape& s) {
  using namespace segment;
  const std::size_t b = kernels::embedding_backward_workspace_bytes(backward_arguments(s), s.backend);
  Segment result{.name = "embedding", .layer = -1, .forward = {}, .backward = {}};
  result.forward.operands = {stream_out(s), weight("embedding.weight"), {OperandKind::tokens, Access::read, "tokens", 4 * s.tokens(), {}}};
  result.backward.operands = {d_stream(s, Access::read),
                              {OperandKind::tokens, Access::read, "tokens", 4 * s.tokens(), {}},
                              gradient("embedding.weight"),
                              workspace(b)};
  result.forward.run = forward;
  result.backward.run = [b](const SegmentRun& r) { backward(r, b); };
  return result;
}

}  // namespace tessera
