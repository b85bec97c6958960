// A backward pass in two: what the stage before waits for, and what nobody waits for.
#include <algorithm>
#include <map>
#include <set>

#include "base/check.hpp"
#include "model/record/passes.hpp"

namespace tessera {
namespace {

/// Of values that were there before the first call.
constexpr int before_all = -1;

/// A value as a call reads it: by which call of the pass it was written last.
struct Read {
  Value value;
  int version = before_all;
};

class Parting {
 public:
  Parting(const Segment& segment, const std::vector<CallRef>& calls, const Kept& kept, bool stream_kept,
          const std::function<bool(const ValueInfo&)>& at_hand)
      : segment_(segment), calls_(calls), kept_(kept), stream_kept_(stream_kept), at_hand_(at_hand) {
    std::vector<int> last(segment.values.size(), before_all);
    for (int i = 0; i < count(); ++i) {
      auto& of_call = reads_.emplace_back();
      for (const Touch& touch : call(i).touches)
        if (reads(touch) && is_made(kind(touch.value))) of_call.push_back({touch.value, last[index(touch.value)]});
      for (const Touch& touch : call(i).touches)
        if (writes(touch)) last[index(touch.value)] = i;
      late_.push_back(writes_gradients_alone(i));
    }
    now_ = needed_by_inputs();
  }

  /// Calls of the pass that come later, in order. `makes_again`: with what both need, where that is cheap.
  std::set<int> later(bool makes_again) {
    std::set<int> chosen;
    for (int i = 0; i < count(); ++i) {
      if (!late_[at(i)]) continue;
      std::set<int> with{i};
      if (std::ranges::all_of(reads_[at(i)], [&](const Read& read) { return provide(read, makes_again, with); }))
        chosen.insert(with.begin(), with.end());
    }
    return chosen;
  }
  /// Whether each of them finds what it reads as it was.
  bool is_sound(const std::set<int>& chosen) const {
    std::map<int, int> there;  // version by value
    std::set<int> brought, made;
    for (const int i : chosen) {
      for (const Read& read : reads_[at(i)]) {
        const auto known = there.find(read.value.id);
        if (known != there.end() && known->second != read.version) return false;
        if (known == there.end()) there[read.value.id] = read.version, brought.insert(read.value.id);
      }
      for (const Touch& touch : call(i).touches)
        if (writes(touch) && is_made(kind(touch.value))) there[touch.value.id] = i, made.insert(touch.value.id);
    }
    // Bytes that wait are not those of what is made again.
    return std::ranges::none_of(made, [&](int value) { return brought.contains(value); });
  }
  /// Calls of the first task: all others, and those that both need.
  std::vector<CallRef> first(const std::set<int>& chosen) const {
    std::vector<bool> needed = now_;
    for (const int i : chosen)
      for (const Read& read : reads_[at(i)])
        if (read.version != before_all && !chosen.contains(read.version)) need(read.version, needed);
    for (int i = 0; i < count(); ++i)
      if (late_[at(i)] && !chosen.contains(i)) need(i, needed);
    std::vector<CallRef> calls;
    for (int i = 0; i < count(); ++i)
      if (needed[at(i)]) calls.push_back(calls_[at(i)]);
    return calls;
  }
  /// What they read and do not make.
  std::vector<Value> waiting(const std::set<int>& chosen) const {
    std::vector<Value> found;
    for (const int i : chosen)
      for (const Read& read : reads_[at(i)])
        if (!chosen.contains(read.version) && std::ranges::find(found, read.value) == found.end()) found.push_back(read.value);
    return found;
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  static bool is_made(ValueKind kind) {
    return kind == ValueKind::activation || kind == ValueKind::stream_in || kind == ValueKind::stream_out || kind == ValueKind::d_stream;
  }
  int count() const { return static_cast<int>(calls_.size()); }
  const Call& call(int i) const { return call_of(segment_, calls_[at(i)]); }
  ValueKind kind(Value value) const { return segment_.at(value).kind; }

  bool writes_gradients_alone(int i) const {
    const Call& c = call(i);
    return calls_[at(i)].backward && !c.exchange &&
           std::ranges::all_of(c.touches, [&](const Touch& t) { return !writes(t) || kind(t.value) == ValueKind::weight_gradient; });
  }
  /// A call is needed, and so is what makes what it reads.
  void need(int i, std::vector<bool>& needed) const {
    if (needed[at(i)]) return;
    needed[at(i)] = true;
    for (const Read& read : reads_[at(i)])
      if (read.version != before_all) need(read.version, needed);
  }
  std::vector<bool> needed_by_inputs() const {
    std::vector<bool> needed(calls_.size(), false);
    for (int i = 0; i < count(); ++i)
      if (calls_[at(i)].backward && !late_[at(i)]) need(i, needed);
    return needed;
  }
  /// No other call than a late one writes a value after that.
  bool stays(const Read& read) const {
    for (int i = read.version + 1; i < count(); ++i)
      for (const Touch& touch : call(i).touches)
        if (touch.value == read.value && writes(touch)) return false;
    return true;
  }
  /// Makes sure of what a late call reads: it waits, or `with` gets the calls that make it.
  bool provide(const Read& read, bool makes_again, std::set<int>& with) const {
    const ValueKind what = kind(read.value);
    if (read.version == before_all) {
      if (what == ValueKind::d_stream) return true;  // of which a copy waits
      if (what == ValueKind::stream_in) return stream_kept_;
      return what == ValueKind::activation && kept_[index(read.value)] != KeptBy::none && stays(read);
    }
    const Call& maker = call(read.version);
    // What is gathered has as many times the bytes of its part as there are ranks.
    const bool gathers = maker.exchange && maker.exchange->kind == CollectiveKind::all_gather;
    const bool cheap = maker.flops == 0 && (!maker.exchange || gathers), alone = !now_[at(read.version)];
    if (std::set<int> calls = with; makes_again && (cheap || alone) && can_make(read.version, calls)) {
      with = std::move(calls);
      return true;
    }
    return what == ValueKind::activation && stays(read);
  }
  bool can_make(int i, std::set<int>& with) const {
    if ((calls_[at(i)].backward && !call(i).exchange) || call(i).turns > 0) return false;
    for (const Touch& touch : call(i).touches) {
      if (writes(touch) && kind(touch.value) != ValueKind::activation) return false;
      if (kind(touch.value) == ValueKind::weight && !at_hand_(segment_.at(touch.value))) return false;
    }
    with.insert(i);
    return std::ranges::all_of(reads_[at(i)], [&](const Read& read) { return provide(read, true, with); });
  }

  const Segment& segment_;
  const std::vector<CallRef>& calls_;
  const Kept& kept_;
  bool stream_kept_;
  const std::function<bool(const ValueInfo&)>& at_hand_;
  std::vector<std::vector<Read>> reads_;  ///< by call
  std::vector<bool> late_, now_;          ///< by call: may come later; is needed before
};

}  // namespace

PartedBackward part_backward(const Segment& segment, int number, const Kept& kept, bool stream_kept,
                             const std::function<bool(const ValueInfo&)>& at_hand) {
  const SegmentPass whole = backward_pass(segment, number, kept);
  if (segment.joint) return {.inputs = whole, .weights = {}};
  Parting parting(segment, whole.calls, kept, stream_kept, at_hand);
  std::set<int> later = parting.later(true);
  if (!parting.is_sound(later)) later = parting.later(false);
  TESSERA_REQUIRE(parting.is_sound(later), "gradients of weights of {} read values that are freed already", segment.name);
  PartedBackward parted{.inputs = {}, .weights = {}};
  std::vector<CallRef> calls;
  for (const int i : later) calls.push_back(whole.calls[static_cast<std::size_t>(i)]);
  for (const Value value : parting.waiting(later)) {
    if (segment.at(value).kind == ValueKind::activation) parted.waiting.push_back(value);
    if (segment.at(value).kind == ValueKind::d_stream) parted.reads_d_stream = true;
  }
  const auto waits = [&](Value value) { return std::ranges::find(parted.waiting, value) != parted.waiting.end(); };
  const auto keeper = [&](Value value) {
    const KeptBy by = kept[index(value)];
    return by == KeptBy::none && waits(value) ? KeptBy::backward : by;
  };
  parted.inputs = pass_of_calls(segment, number, PassKind::backward, "input gradients " + segment.name, parting.first(later), keeper);
  parted.weights = pass_of_calls(segment, number, PassKind::weights, "weight gradients " + segment.name, std::move(calls),
                                 [&](Value value) { return waits(value) ? keeper(value) : KeptBy::none; });
  return parted;
}

}  // namespace tessera
