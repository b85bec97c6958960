#include "model/record/passes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bitset>

#include "base/clock.hpp"
#include "kernels/gemm/room.hpp"

namespace tessera {
namespace {

constexpr std::size_t max_values = 192;  // of a segment: addresses stand on the stack, so that a run allocates nothing

/// A list of calls that grows by what its calls need.
class Replay {
 public:
  Replay(const Segment& segment, const Kept& kept) : segment_(segment), kept_(kept) {
    TESSERA_REQUIRE(segment.values.size() <= max_values, "{} has {} values", segment.name, segment.values.size());
    for (const Call& call : segment.forward)
      for (const Touch& touch : call.touches)
        if (writes(touch)) made_forward_[index(touch.value)] = true;
  }

  /// A value that is read: it is there already, it was kept by a pass before this one, or the forward calls that write it come now.
  void require(Value value, PassKind reader) {
    const ValueKind kind = segment_.at(value).kind;
    if ((kind != ValueKind::activation && kind != ValueKind::stream_out) || there_[index(value)]) return;
    there_[index(value)] = true;
    const KeptBy by = kept_[index(value)];
    if (by == KeptBy::forward || (by == KeptBy::again && reader == PassKind::backward)) {
      read_[index(value)] = true;
      return;
    }
    for (std::size_t c = 0; c < segment_.forward.size(); ++c) {
      if (std::ranges::none_of(segment_.forward[c].touches, [&](const Touch& t) { return t.value == value && writes(t); })) continue;
      if (const int turns = segment_.forward[c].turns; turns > 0) return add_turns(turns, reader);
      add({false, c}, reader);
    }
  }
  void add(const CallRef& ref, PassKind reader) {
    const Call& call = call_of(segment_, ref);
    for (const Touch& touch : call.touches)
      if (reads(touch)) require(touch.value, reader);
    if (call.makes_nothing()) return;
    calls_.push_back(ref);
    for (const Touch& touch : call.touches)
      if (writes(touch)) there_[index(touch.value)] = true;
  }
  /// All calls that take turns, in their order, after what they need of others; then those that change in place what these have made.
  void add_turns(int turns, PassKind reader) {
    std::vector<std::size_t> calls;
    Values made;
    for (std::size_t c = 0; c < segment_.forward.size(); ++c)
      if (segment_.forward[c].turns == turns) calls.push_back(c);
    for (const std::size_t c : calls)
      for (const Touch& touch : segment_.forward[c].touches)
        if (writes(touch)) made[index(touch.value)] = true;
    there_ |= made;
    for (const std::size_t c : calls) add({false, c}, reader);
    for (std::size_t c = calls.back() + 1; c < segment_.forward.size(); ++c)
      if (std::ranges::any_of(segment_.forward[c].touches, [&](const Touch& t) { return writes(t) && made[index(t.value)]; }))
        add({false, c}, reader);
  }
  /// A call of the backward text. A gradient that it puts in the place of a value of the forward text ends that value. What later calls
  /// read, and what could then no longer be made without it or would be made over it, is made before.
  void add_backward(std::size_t c) {
    const Call& call = segment_.backward[c];
    for (const Touch& touch : call.touches)
      if (reads(touch)) require(touch.value, PassKind::backward);
    Values ended;
    for (const Touch& touch : call.touches)
      if (writes(touch)) ended[index(touch.value)] = made_forward_[index(touch.value)];
    if (ended.any()) require_for_later(c, ended);
    add({true, c}, PassKind::backward);
  }
  std::vector<CallRef> take() { return std::move(calls_); }
  /// Whether a value was read that an earlier pass kept.
  bool read(std::size_t value) const { return read_[value]; }

 private:
  using Values = std::bitset<max_values>;

  void require_for_later(std::size_t c, const Values& ended) {
    Values written = ended;  // by the backward text: what reads it means that
    for (std::size_t later = c + 1; later < segment_.backward.size(); ++later) {
      for (const Touch& touch : segment_.backward[later].touches)
        if (reads(touch) && !written[index(touch.value)] && !there_[index(touch.value)]) require_if_touched(touch.value, ended);
      for (const Touch& touch : segment_.backward[later].touches)
        if (writes(touch)) written[index(touch.value)] = true;
    }
  }
  /// Where the calls that make the value touch one of `ended`; else nothing comes of it.
  void require_if_touched(Value value, const Values& ended) {
    const Values there = there_, read = read_;
    const std::size_t before = calls_.size();
    require(value, PassKind::backward);
    for (std::size_t i = before; i < calls_.size(); ++i)
      for (const Touch& touch : call_of(segment_, calls_[i]).touches)
        if (ended[index(touch.value)]) return;
    there_ = there, read_ = read, calls_.resize(before);
  }

  const Segment& segment_;
  const Kept& kept_;
  Values there_, read_, made_forward_;
  std::vector<CallRef> calls_;
};

Replay replay_backward(const Segment& segment, const Kept& kept) {
  Replay replay(segment, kept);
  for (std::size_t c = 0; c < segment.backward.size(); ++c) replay.add_backward(c);
  return replay;
}

/// Whose bytes a value of a pass has.
KeptBy kept_in(PassKind kind, KeptBy by) {
  if (kind == PassKind::forward && by == KeptBy::again) return KeptBy::none;
  return by;
}

/// Operands, FLOPs and workspace of the pass's calls. `kept_by` says who keeps an activation.
template <class KeptByOf>
void count_calls(const Segment& segment, SegmentPass& pass, const KeptByOf& kept_by) {
  std::vector<int> place(segment.values.size(), -1);
  for (const CallRef& ref : pass.calls) {
    const Call& call = call_of(segment, ref);
    for (const Touch& touch : call.touches) {
      int& at = place[index(touch.value)];
      if (at < 0) {
        at = static_cast<int>(pass.operands.size());
        pass.operands.push_back({.value = touch.value, .access = touch.access, .kept_by = kept_by(touch.value)});
      } else if (Access& access = pass.operands[static_cast<std::size_t>(at)].access; access == Access::read && writes(touch)) {
        access = Access::add;
      }
    }
    pass.flops += call.flops;
    if (!ref.backward && pass.kind != PassKind::forward) pass.remade_flops += call.flops;
    pass.workspace = std::max(pass.workspace, call.workspace);
  }
}

SegmentPass make_pass(const Segment& segment, int number, PassKind kind, const std::string& verb, const Kept& kept,
                      std::vector<CallRef> calls) {
  return pass_of_calls(segment, number, kind, verb + " " + segment.name, std::move(calls),
                       [&](Value value) { return kept_in(kind, kept[index(value)]); });
}

}  // namespace

SegmentPass pass_of_calls(const Segment& segment, int number, PassKind kind, const std::string& name, std::vector<CallRef> calls,
                          const std::function<KeptBy(Value)>& kept_by) {
  SegmentPass pass{.segment = {.segment = number}, .kind = kind, .name = name, .whole = name, .calls = std::move(calls), .operands = {}};
  count_calls(segment, pass, kept_by);
  return pass;
}

const Call& call_of(const Segment& segment, const CallRef& ref) { return (ref.backward ? segment.backward : segment.forward)[ref.index]; }

void SegmentPass::run(const Segment& record, std::span<void* const> addresses, std::span<const Access> access, kernels::Context context,
                      std::span<double> seconds, RoomOfPass room) const {
  std::array<void*, max_values> at{};
  std::array<bool, max_values> adds{};
  for (std::size_t i = 0; i < operands.size(); ++i)
    at[index(operands[i].value)] = addresses[i], adds[index(operands[i].value)] = access[i] == Access::add;
  const std::span<std::byte> workspace = context.workspace;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Call& call = call_of(record, calls[i]);
    context.workspace = workspace.first(call.workspace);
    const double begin = seconds.empty() ? 0 : now_seconds();
    const kernels::RoomBeside beside(i < room.calls ? room.multiprocessors : 0);
    call.run(At(at, adds, context));
    if (!seconds.empty()) seconds[i] += now_seconds() - begin;
    for (const Touch& touch : call.touches) adds[index(touch.value)] = true;  // a sum that a call has begun goes on
  }
}

const Exchange* exchange_of(const Segment& segment, const SegmentPass& pass) {
  const Call& first = call_of(segment, pass.calls.front());
  return first.exchange ? &*first.exchange : nullptr;
}

std::vector<SegmentPass> cut_at_exchanges(const Segment& segment, const SegmentPass& pass) {
  const auto exchanges = [&](const CallRef& ref) { return call_of(segment, ref).exchange.has_value(); };
  if (std::ranges::none_of(pass.calls, exchanges)) return {pass};
  std::vector<SegmentPass> parts;
  std::vector<bool> brought(segment.values.size(), false);  // by collectives that no part has waited for yet
  int computed = 0;
  const auto begin = [&](const CallRef& ref) {
    SegmentPass part{.segment = pass.segment, .kind = pass.kind, .name = pass.name, .whole = pass.name, .calls = {}, .operands = {}};
    if (exchanges(ref))
      part.name = fmt::format("{} ({})", call_of(segment, ref).name, pass.name);
    else if (++computed > 1)
      part.name += fmt::format(", part {}", computed);
    parts.push_back(std::move(part));
  };
  bool fresh = true;
  for (const CallRef& ref : pass.calls) {
    const Call& call = call_of(segment, ref);
    bool waits = false;
    for (const Touch& touch : call.touches)
      if (brought[index(touch.value)]) waits = true, brought[index(touch.value)] = false;
    if (fresh || call.exchange || waits) begin(ref);
    parts.back().calls.push_back(ref);
    if ((fresh = call.exchange.has_value())) brought[index(call.touches.front().value)] = true;
  }
  for (SegmentPass& part : parts)
    count_calls(segment, part, [&](Value value) {
      return std::ranges::find_if(pass.operands, [&](const Operand& o) { return o.value == value; })->kept_by;
    });
  return parts;
}

Kept keep_for_backward(const Segment& segment, const std::function<KeptBy(const ValueInfo&)>& wanted) {
  Kept kept(segment.values.size(), KeptBy::none);
  for (std::size_t v = 0; v < kept.size(); ++v) {
    const ValueInfo& info = segment.values[v];
    if (info.kind == ValueKind::activation) kept[v] = wanted(info);
  }
  // Of what may be kept, what the backward pass reads: the rest it never needs, or it stands in the way of what is made again. A call that
  // is made again writes all its values, by when a gradient may have taken the place of one that was kept: none of them is.
  for (bool settled = false; !settled;) {
    Replay replay = replay_backward(segment, kept);
    for (std::size_t v = 0; v < kept.size(); ++v)
      if (!replay.read(v)) kept[v] = KeptBy::none;
    settled = true;
    for (const CallRef& ref : replay.take())
      for (const Touch& touch : call_of(segment, ref).touches)
        if (!ref.backward && writes(touch) && kept[index(touch.value)] != KeptBy::none)
          kept[index(touch.value)] = KeptBy::none, settled = false;
  }
  return kept;
}

SegmentPass forward_pass(const Segment& segment, int number, const Kept& kept) {
  std::vector<CallRef> calls;
  for (std::size_t c = 0; c < segment.forward.size(); ++c) calls.push_back({false, c});
  return make_pass(segment, number, PassKind::forward, segment.forward_verb, kept, std::move(calls));
}

SegmentPass again_pass(const Segment& segment, int number, const Kept& kept) {
  Replay replay(segment, kept);
  for (std::size_t v = 0; v < kept.size(); ++v)
    if (segment.values[v].kind == ValueKind::stream_out || kept[v] == KeptBy::again) replay.require({static_cast<int>(v)}, PassKind::again);
  return make_pass(segment, number, PassKind::again, "recompute", kept, replay.take());
}

SegmentPass backward_pass(const Segment& segment, int number, const Kept& kept) {
  return make_pass(segment, number, PassKind::backward, segment.backward_verb, kept, replay_backward(segment, kept).take());
}

}  // namespace tessera
