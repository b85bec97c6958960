// A segment is the piece of a layer between two places where a collective or a recompute boundary may stand. Its text (attention.cpp,
// mlp.cpp, ...) is read by a Recorder; what stands here is the record: values, and calls of kernels that touch them. Training, evaluation
// and recompute are readings of it (passes.hpp); for a prompt and for a decoded token the same text is recorded at their shapes. It knows
// neither ranks nor ZeRO.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/access.hpp"
#include "base/check.hpp"
#include "kernels/gemm/gemm.hpp"
#include "model/record/products.hpp"
#include "model/table/shape.hpp"
#include "topology/communicators/communicator.hpp"
#include "topology/mesh.hpp"

namespace tessera {

/// A tensor of a segment. Declaring it gives this handle; nothing is matched by position or by name.
struct Value {
  int id = -1;  ///< in Segment::values; -1: absent, its address is null
  explicit operator bool() const { return id >= 0; }
  friend bool operator==(const Value&, const Value&) = default;
};

/// Where a value's memory comes from.
enum class ValueKind : std::uint8_t {
  stream_in,              ///< residual stream that enters, (R,C)
  stream_out,             ///< residual stream that leaves, (R,C)
  d_stream,               ///< gradient of the stream, (R,C); the backward pass turns that of the output into that of the input, in place
  activation,             ///< made and used inside the segment
  weight,                 ///< a tensor (with those joined to it) in the compute type
  packed_weight,          ///< the same as `product` likes it best; null where no packed copy is kept
  weight_gradient,        ///< its fp32 gradient: the first touch of a sum starts it, later ones add
  rope_table,             ///< (T, rotated/2, 2) fp32; of a text (capacity, rotated/2, 2); name_of_rotation() says of which rotation
  rotations,              ///< (1, rotated/2, 2) fp32: of it the row of a token's position
  tokens,                 ///< (M) int32 inputs of this micro-batch
  targets,                ///< (M) int32
  row_weights,            ///< (M) fp32: what the loss of each row counts for
  token_groups,           ///< (M) int32: whose loss a token's is, of those that are summed apart; -1: nobody's
  positions,              ///< (M) int32: where in its document each token stands
  padding,                ///< (M) int32: 1 where a token is padding
  document_starts,        ///< (B,T) int32: what AttentionForward::document_starts has
  micro_batch_weight,     ///< 1 double: 0 where the routers' losses of this micro-batch, which only keeps ranks in step, do not count
  gradient_scale,         ///< kernels::GradientScale
  fp8_multipliers,        ///< (histories) fp32: scales of a step's tensors (kernels/fp8_history)
  fp8_largest,            ///< (histories) fp32: their largest magnitudes in the step, a note beside a text's values: calls join it in any
                          ///< order and read none of it, so that they declare it as read; null where the pass does not count
  fp8_weight_multiplier,  ///< 1 fp32: the scale of a matrix; null where a product finds it in the matrix
  fp8_weight_largest,     ///< 1 fp32: of a matrix what fp8_largest is; null where others have found it
  scalars,                ///< kernels::StepScalars
  group_losses,           ///< (groups) kernels::GroupTotals
  router_totals,          ///< kernels::RouterTotals, then (L,E) int64
  text_tokens,            ///< (M) int32 of a text: "prompt" or "token"
  position,               ///< 1 int32: of a token in its text
  cached_keys,            ///< (capacity, G D): of a text, kept between passes
  cached_values,          ///< the same
  logits,                 ///< (V) fp32 of the token that follows
  likeliest               ///< 1 int32: the id of the largest of them
};

struct ValueInfo {
  ValueKind kind = ValueKind::activation;
  std::string name;            ///< tensor name, or what the value holds
  std::int64_t bytes = 0;      ///< of activations, streams and packed weights
  kernels::Gemm product = {};  ///< of a packed weight: the shape that reads it
  bool exchanged = false;      ///< of an activation or stream: a collective touches it
  bool remade = false;         ///< of an activation: the backward pass makes it again, since that is cheaper than its bytes
};

struct Touch {
  Value value;
  Access access = Access::read;
};

inline std::size_t index(Value value) { return static_cast<std::size_t>(value.id); }
inline bool writes(const Touch& touch) { return touch.access != Access::read; }
inline bool reads(const Touch& touch) { return touch.access != Access::write; }

/// What a call is handed: where its values are.
class At {
 public:
  At(std::span<void* const> addresses, std::span<const bool> adds, const kernels::Context& context)
      : context(context), addresses_(addresses), adds_(adds) {}
  template <class T = void>
  T* get(Value value) const {
    return value ? static_cast<T*>(addresses_[static_cast<std::size_t>(value.id)]) : nullptr;
  }
  /// Whether a gradient goes on with a sum that is there; else it starts one.
  bool adds(Value gradient) const { return adds_[static_cast<std::size_t>(gradient.id)]; }

  const kernels::Context& context;  ///< with the workspace that the call asked for

 private:
  std::span<void* const> addresses_;
  std::span<const bool> adds_;
};

// What bounds a call, for whoever predicts its time.

/// A product of a linear layer: `outputs` and `inputs` features of `tokens` rows.
struct ProductWork {
  products::Product product{};
  std::int64_t tokens = 0, outputs = 0, inputs = 0;
  double quantised_bytes = 0;  ///< of a product of codes: read and written to make them
};
/// Attention over sequences of `tokens`: causal, or as many FLOPs of a block without a mask.
struct AttentionWork {
  bool backward = false;
  std::int64_t tokens = 0, head_dim = 0;
  std::int64_t window = 0;  ///< keys that a query sees at most; 0: all before it
};
/// A pass over memory: bytes read and written.
struct MemoryWork {
  double bytes = 0;
};
using Work = std::variant<MemoryWork, ProductWork, AttentionWork>;

/// A call that is a collective over the ranks of an axis. It touches what it writes, then what it reads.
struct Exchange {
  CollectiveKind kind{};
  Axis axis = Axis::tp;
  std::int64_t count = 0;  ///< elements of a rank, of an all_to_all those of a block
  DType dtype{};
  std::int64_t times = 1;  ///< of an all_to_all
  int by = 1;              ///< of a rotate: ranks that it goes further
};

/// A kernel call of a segment.
struct Call {
  std::string name;  ///< "linear gate_up": the kernel, then what it works on
  std::vector<Touch> touches;
  double flops = 0;
  Work work = {};             ///< of a pass over memory of 0 bytes: those of its touches
  std::size_t workspace = 0;  ///< bytes
  std::function<void(const At&)> run;
  std::optional<Exchange> exchange = {};  ///< in place of `run`: it becomes a task of its own
  /// Forward calls of one number, which follow each other, are made again together: they work on values in turns, so that one of them
  /// alone would find what another has left there. 0: a call of its own.
  int turns = 0;
  /// Neither run nor exchange: it makes sure that what it reads is there, and is no part of a pass.
  bool makes_nothing() const { return !run && !exchange; }

  std::string_view kernel() const { return std::string_view(name).substr(0, name.find(' ')); }
};

struct Segment {
  std::string name;  ///< "layers.3.attention"
  int layer = -1;    ///< -1: outside the layers
  std::vector<ValueInfo> values;
  std::vector<Call> forward, backward;
  bool joint = false;  ///< `backward` makes what `forward` makes as well: a training step runs it alone (the head)
  std::string forward_verb = "forward", backward_verb = "backward";  ///< of tasks' names

  const ValueInfo& at(Value value) const { return values[static_cast<std::size_t>(value.id)]; }
};

Segment embedding_segment(const ModelShape&);
Segment attention_segment(const ModelShape&, int layer);
Segment mlp_segment(const ModelShape&, int layer);
Segment moe_segment(const ModelShape&, int layer);
Segment side_by_side_segment(const ModelShape&, int layer);
Segment head_segment(const ModelShape&);

/// All segments in forward order: embedding, (attention, mlp or moe; or both side by side) of each layer, head.
std::vector<Segment> model_segments(const ModelShape& shape);

}  // namespace tessera
