// Readings of a segment's record: which calls a task makes, and which values it shares with other tasks. Recompute is nothing else: a value
// that is not kept is made again by the forward calls that write it, before the first call that reads it.
#pragma once
#include <compare>

#include "model/record/segment.hpp"

namespace tessera {

enum class PassKind : std::uint8_t {
  forward,   ///< of training, or of an evaluation or a text, which keep nothing
  again,     ///< forward calls made again before the backward pass of a later segment, which needs this one's stream
  backward,  ///< with the forward calls that make what was not kept
  weights,   ///< gradients of weights, which a backward pass has left for later
};

/// Which earlier pass keeps an activation for the backward pass; `none`: where it is needed it is made again.
/// Where gradients of weights come later, `backward`: what a backward pass makes for them.
enum class KeptBy : std::uint8_t { none, forward, again, backward };
/// By value of a segment.
using Kept = std::vector<KeptBy>;

/// A value of a pass, which a task binds to bytes.
struct Operand {
  Value value;
  Access access = Access::read;   ///< by all calls together: `write` where the first touch writes, `add` where one reads and one writes
  KeptBy kept_by = KeptBy::none;  ///< an activation's; none: it lives inside this pass
};

/// A call of a segment's record: of its forward or its backward text.
struct CallRef {
  bool backward = false;
  std::size_t index = 0;
};
const Call& call_of(const Segment& segment, const CallRef& ref);

/// A segment of a schedule: of the tower (Schedule::towers) and in forward order.
struct SegmentNumber {
  int tower = 0, segment = 0;
  SegmentNumber before() const { return {tower, segment - 1}; }
  friend auto operator<=>(const SegmentNumber&, const SegmentNumber&) = default;
};

/// Of a pass on a GPU that begins beside a collective: products among its first `calls` leave it so many multiprocessors.
struct RoomOfPass {
  std::size_t calls = 0;
  int multiprocessors = 0;
};

/// A run of calls that is one task.
struct SegmentPass {
  SegmentNumber segment;
  PassKind kind = PassKind::forward;
  std::string name;   ///< "forward layers.3.mlp"
  std::string whole;  ///< of a part, the name of the pass that was cut; else the name
  std::vector<CallRef> calls;
  std::vector<Operand> operands;
  double flops = 0, remade_flops = 0;  ///< of all calls; of those that make values again
  std::size_t workspace = 0;           ///< bytes

  /// Makes the calls of `record`, whose reading this is. `addresses` and `access` are those of the operands, in their order. `seconds` has
  /// a sum for each call, to which is added how long the call took; empty: nobody asks.
  void run(const Segment& record, std::span<void* const> addresses, std::span<const Access> access, kernels::Context context,
           std::span<double> seconds = {}, RoomOfPass room = {}) const;
};

/// The collective of a pass that is nothing else; else null.
const Exchange* exchange_of(const Segment& segment, const SegmentPass& pass);

/// The pass as tasks: each collective is one, and what comes after one is cut before the first call that touches what it brings, so that
/// calls between them run beside it. A pass without collectives is one task.
std::vector<SegmentPass> cut_at_exchanges(const Segment& segment, const SegmentPass& pass);

/// Keeps what `wanted` says of each activation, as far as the backward pass then reads it; the others it makes again.
Kept keep_for_backward(const Segment& segment, const std::function<KeptBy(const ValueInfo&)>& wanted);

/// All calls of the forward text. `number` is the segment's of its tower.
SegmentPass forward_pass(const Segment& segment, int number, const Kept& kept);
/// The forward calls that make the outgoing stream, and what `kept` says that this pass keeps.
SegmentPass again_pass(const Segment& segment, int number, const Kept& kept);
/// The backward text; before the first call that reads a value which is not kept stand the forward calls that make it.
SegmentPass backward_pass(const Segment& segment, int number, const Kept& kept);

/// A backward pass in two tasks, of which the second may come much later (Qi et al., arXiv:2401.10241).
struct PartedBackward {
  SegmentPass inputs;            ///< all that the gradient of the incoming stream needs
  SegmentPass weights;           ///< gradients of weights and what they alone need; without calls where nothing can be put off
  bool reads_d_stream = false;   ///< `weights` reads the gradient of the outgoing stream, in whose place `inputs` puts that of the incoming
  std::vector<Value> waiting{};  ///< activations that `weights` reads and does not make
};
/// Calls that write gradients of weights alone come later, with what only they read. What both tasks need is made again by the second one
/// where that takes no product, reads nothing that is gone by then, and no weight but those that `at_hand` has; else it waits for it.
/// `stream_kept`: the incoming stream is there then. A joint segment is not parted: what its gradients of weights read is made a piece at a
/// time.
PartedBackward part_backward(const Segment& segment, int number, const Kept& kept, bool stream_kept,
                             const std::function<bool(const ValueInfo&)>& at_hand);

/// A pass that makes these calls. `kept_by` says who keeps an activation.
SegmentPass pass_of_calls(const Segment& segment, int number, PassKind kind, const std::string& name, std::vector<CallRef> calls,
                          const std::function<KeptBy(Value)>& kept_by);

}  // namespace tessera
