// A segment is the piece of a layer between two places where a collective, a saved tensor or a recompute boundary may stand.
// Each segment states what it reads and writes (operands) and is plain code that calls kernels; it knows neither ranks nor ZeRO.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "kernels/gemm/gemm.hpp"
#include "model/shape.hpp"

namespace tessera {

/// What an operand is, so that whoever builds a schedule knows which buffer to bind.
enum class OperandKind : std::uint8_t {
  stream_in,        ///< residual stream that enters, (M,C)
  stream_out,       ///< residual stream that leaves, (M,C)
  d_stream,         ///< gradient of the stream, (M,C); the backward pass turns that of the output into that of the input, in place
  saved,            ///< written by the forward pass, read by the backward pass
  scratch,          ///< lives inside the task
  workspace,        ///< kernels' temporary memory
  weight,           ///< a tensor (with those joined to it) in the compute type
  packed_weight,    ///< the same as `product` likes it best; null where no packed copy is kept
  weight_gradient,  ///< its fp32 gradient: access `write` starts a sum, `add` goes on with it
  rope_table,       ///< (T, D/2, 2) fp32
  tokens,           ///< (M) int32 inputs of this micro-batch
  targets,          ///< (M) int32
  losses            ///< (M) fp32 and after it one double: their sum
};

enum class Access : std::uint8_t { read, write, add };

struct Operand {
  OperandKind kind = OperandKind::scratch;
  Access access = Access::read;
  std::string name;        ///< tensor name, or what the buffer holds
  std::int64_t bytes = 0;  ///< of saved, scratch, workspace and packed weights
  kernels::Gemm product;   ///< of a packed weight: the shape that reads it
};

/// What a segment's code is handed: one address an operand, in the order in which it declared them.
struct SegmentRun {
  std::span<void* const> at;
  std::span<const Access> access;
  const ModelShape& shape;
  kernels::Context context;  ///< without workspace
  float grad_scale = 1;      ///< 1 / tokens of the global batch

  template <class T = void>
  T* get(int i) const {
    return static_cast<T*>(at[static_cast<std::size_t>(i)]);
  }
  kernels::Context with_workspace(int i, std::size_t bytes) const {
    kernels::Context result = context;
    result.workspace = {get<std::byte>(i), bytes};
    return result;
  }
  bool adds(int i) const { return access[static_cast<std::size_t>(i)] == Access::add; }
};

struct SegmentPass {
  std::vector<Operand> operands;
  std::function<void(const SegmentRun&)> run;
  double flops = 0;
};

/// A segment with its passes. For the head, `backward` is the loss with its gradient and `forward` the loss alone (evaluation).
struct Segment {
  std::string name;  ///< "layers.3.attention"
  int layer = -1;
  SegmentPass forward, backward;
};

Segment embedding_segment(const ModelShape&);
Segment attention_segment(const ModelShape&, int layer);
Segment mlp_segment(const ModelShape&, int layer);
Segment head_segment(const ModelShape&);

/// All segments in forward order: embedding, (attention, mlp) of each layer, head.
std::vector<Segment> model_segments(const ModelShape& shape);

/// Convenience of the segment files.
namespace segment {
inline Operand stream_in(const ModelShape& s) { return {OperandKind::stream_in, Access::read, "stream", s.bytes_of(s.tokens() * s.C), {}}; }
inline Operand stream_out(const ModelShape& s) {
  return {OperandKind::stream_out, Access::write, "stream", s.bytes_of(s.tokens() * s.C), {}};
}
inline Operand d_stream(const ModelShape& s, Access a) { return {OperandKind::d_stream, a, "d_stream", s.bytes_of(s.tokens() * s.C), {}}; }
inline Operand saved(const char* name, Access a, std::int64_t bytes) { return {OperandKind::saved, a, name, bytes, {}}; }
inline Operand scratch(const char* name, std::int64_t bytes) { return {OperandKind::scratch, Access::write, name, bytes, {}}; }
inline Operand workspace(std::size_t bytes) {
  return {OperandKind::workspace, Access::write, "workspace", static_cast<std::int64_t>(bytes), {}};
}
inline Operand weight(std::string tensor) { return {OperandKind::weight, Access::read, std::move(tensor), 0, {}}; }
/// `product` reads the tensor as its b.
inline Operand packed_weight(const ModelShape& s, std::string tensor, const kernels::Gemm& product) {
  const std::size_t bytes = s.pack_weights ? kernels::gemm_packed_bytes(product, s.backend) : 0;
  return {OperandKind::packed_weight, Access::read, std::move(tensor), static_cast<std::int64_t>(bytes), product};
}
inline Operand gradient(std::string tensor) { return {OperandKind::weight_gradient, Access::add, std::move(tensor), 0, {}}; }
}  // namespace segment

}  // namespace tessera
