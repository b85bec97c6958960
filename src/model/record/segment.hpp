// A segment is a piece of a layer between two possible collectives or recompute boundaries. A Recorder runs its text (attention.cpp,
// mlp.cpp, ...) and makes this record: values, and the kernel calls that touch them. Passes for training, evaluation and recompute are
// derived from it (passes.hpp). For a prompt and a decoded token the same text is recorded at their shapes. It knows neither ranks nor
// ZeRO.
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

/// Handle of a tensor of a segment, from its declaration. Nothing is matched by position or by name.
struct Value {
  int id = -1;  ///< index in Segment::values; -1: absent, with a null address
  explicit operator bool() const { return id >= 0; }
  friend bool operator==(const Value&, const Value&) = default;
};

/// Where a value's memory comes from.
enum class ValueKind : std::uint8_t {
  stream_in,              ///< residual stream that enters, (R,C)
  stream_out,             ///< residual stream that leaves, (R,C)
  d_stream,               ///< gradient of the stream, (R,C); a backward pass overwrites the output's with the input's
  activation,             ///< made and used inside the segment
  weight,                 ///< a tensor (with those joined to it) in the compute type
  packed_weight,          ///< the same, packed for `product`; null without a packed copy
  weight_gradient,        ///< its fp32 gradient; the first write starts the sum, later ones add
  rope_table,             ///< (T, rotated/2, 2) fp32; in generation (capacity, rotated/2, 2); see name_of_rotation()
  rotations,              ///< (1, rotated/2, 2) fp32: the table's row for a token's position
  tokens,                 ///< (M) int32 inputs of this micro-batch
  targets,                ///< (M) int32
  row_weights,            ///< (M) fp32: weight of each row's loss
  token_groups,           ///< (M) int32: group whose loss sum a token joins; -1: none
  sequences,              ///< (M) int32: number in the micro-batch of the text of a pair that a target belongs to; -1: none
  sequence_counts,        ///< (sequences) int32: targets of each text, over all ranks that share the micro-batch; 0: no text
  reference_logps,        ///< (sequences) fp64: log-probabilities of the texts, which the reference or a file made
  positions,              ///< (M) int32: place of each token in its document
  padding,                ///< (M) int32: 1 for padding
  token_numbers,          ///< (M) int64: the number of each token in the run; -1 in an evaluation
  document_starts,        ///< (B,T) int32: see AttentionForward::document_starts
  micro_batch_weight,     ///< 1 double: weight of router losses; 0 for an empty micro-batch
  gradient_scale,         ///< kernels::GradientScale
  fp8_multipliers,        ///< (histories) fp32: scales of this step (kernels/fp8_history)
  fp8_largest,            ///< (histories) fp32: largest magnitudes of this step. Calls update it in any order and never read it, so they
                          ///< declare it as read. Null if the pass does not record magnitudes
  fp8_weight_multiplier,  ///< 1 fp32: the scale of a matrix; null if a product computes it
  fp8_weight_largest,     ///< 1 fp32: largest magnitude of a matrix; null if others compute it
  scalars,                ///< kernels::StepScalars
  preference_totals,      ///< kernels::PreferenceTotals
  group_losses,           ///< (groups) kernels::GroupTotals
  router_totals,          ///< kernels::RouterTotals, then (L,E) int64
  text_tokens,            ///< (M) int32, generation: "prompt" or "token"
  position,               ///< 1 int32: position of the generated token
  cache,                  ///< generation: a Cache of this layer
  logits,                 ///< (V) fp32 of the next token
  likeliest               ///< 1 int32: id of the largest logit
};

/// What generation keeps of a layer between the passes of a text: a row of each token, ModelShape::capacity of them, or a state of the
/// sequence. A text begins with what its first pass, at position 0, writes.
struct Cache {
  std::string name;                            ///< in the layer: "keys"
  std::int64_t of_token = 0, of_sequence = 0;  ///< elements
  DType dtype = DType::f32;
  std::int64_t bytes(std::int64_t capacity) const {
    return (capacity * of_token + of_sequence) * static_cast<std::int64_t>(size_of(dtype));
  }
};

/// Whether a value of this kind is a tensor or belongs to one, whose name it has.
constexpr bool is_of_tensor(ValueKind kind) {
  using enum ValueKind;
  return kind == weight || kind == weight_gradient || kind == packed_weight || kind == fp8_weight_multiplier || kind == fp8_weight_largest;
}

struct ValueInfo {
  ValueKind kind = ValueKind::activation;
  std::string name;            ///< tensor name, or a description
  std::int64_t bytes = 0;      ///< of activations, streams and packed weights
  kernels::Gemm product = {};  ///< of a packed weight: the shape that reads it
  bool exchanged = false;      ///< a collective touches this activation or stream
  bool remade = false;         ///< the backward pass recomputes this activation, because that is cheaper than its bytes
};

struct Touch {
  Value value;
  Access access = Access::read;
};

inline std::size_t index(Value value) { return static_cast<std::size_t>(value.id); }
inline bool writes(const Touch& touch) { return touch.access != Access::read; }
inline bool reads(const Touch& touch) { return touch.access != Access::write; }

/// The addresses of a call's values.
class At {
 public:
  At(std::span<void* const> addresses, std::span<const bool> adds, const kernels::Context& context)
      : context(context), addresses_(addresses), adds_(adds) {}
  template <class T = void>
  T* get(Value value) const {
    return value ? static_cast<T*>(addresses_[static_cast<std::size_t>(value.id)]) : nullptr;
  }
  /// Whether a gradient adds to an existing sum; otherwise it starts one.
  bool adds(Value gradient) const { return adds_[static_cast<std::size_t>(gradient.id)]; }

  const kernels::Context& context;  ///< with the requested workspace

 private:
  std::span<void* const> addresses_;
  std::span<const bool> adds_;
};

// What bounds a call; the simulator predicts its time from this.

/// A product of a linear layer: `outputs` and `inputs` features of `tokens` rows.
struct ProductWork {
  products::Product product{};
  std::int64_t tokens = 0, outputs = 0, inputs = 0;
  double quantised_bytes = 0;  ///< bytes moved to quantise the operands
};
/// Attention over sequences of `tokens`: causal, or an unmasked block of the same FLOPs.
struct AttentionWork {
  bool backward = false;
  std::int64_t tokens = 0, head_dim = 0;
  std::int64_t window = 0;  ///< most keys that a query sees; 0: all before it
};
/// A pass over memory: bytes read and written.
struct MemoryWork {
  double bytes = 0;
};
using Work = std::variant<MemoryWork, ProductWork, AttentionWork>;

/// A call that is a collective over the ranks of an axis. Its touches are its outputs, then its inputs.
struct Exchange {
  CollectiveKind kind{};
  Axis axis = Axis::tp;
  std::int64_t count = 0;  ///< elements of a rank; for an all_to_all of a block
  DType dtype{};
  std::int64_t times = 1;  ///< how often an all_to_all runs: once for each sequence
  int by = 1;              ///< number of ranks that a rotate moves data
};

/// A kernel call of a segment.
struct Call {
  std::string name;  ///< "linear gate_up": the kernel, then its operand
  std::vector<Touch> touches;
  double flops = 0;
  Work work = {};             ///< MemoryWork of 0 bytes stands for the bytes of the touches
  std::size_t workspace = 0;  ///< bytes
  std::function<void(const At&)> run;
  std::optional<Exchange> exchange = {};  ///< instead of `run`: a task of its own
  /// Consecutive forward calls with the same number are recomputed together, because they write the same values one after the other.
  /// 0: recomputed alone.
  int turns = 0;
  /// Without run and exchange: the call only requires that its inputs exist, and is not part of a pass.
  bool makes_nothing() const { return !run && !exchange; }

  std::string_view kernel() const { return std::string_view(name).substr(0, name.find(' ')); }
};

struct Segment {
  std::string name;  ///< "layers.3.attention"
  int layer = -1;    ///< -1: not in a layer
  std::vector<ValueInfo> values;
  std::vector<Call> forward, backward;
  bool joint = false;  ///< `backward` also computes the results of `forward`, so training runs it alone (the head)
  std::string forward_verb = "forward", backward_verb = "backward";  ///< used in task names

  const ValueInfo& at(Value value) const { return values[static_cast<std::size_t>(value.id)]; }
};

Segment embedding_segment(const ModelShape&);
Segment attention_segment(const ModelShape&, int layer);
Segment mlp_segment(const ModelShape&, int layer);
Segment moe_segment(const ModelShape&, int layer);
Segment side_by_side_segment(const ModelShape&, int layer);
Segment head_segment(const ModelShape&);

/// All segments in forward order: embedding; for each layer attention and mlp or moe, or both in one; head.
std::vector<Segment> model_segments(const ModelShape& shape);

}  // namespace tessera
