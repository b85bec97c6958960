#include "model/recompute.hpp"

#include <algorithm>
#include <set>

namespace tessera {
namespace {

std::int64_t kept_bytes(const Segment& segment, const Kept& kept) {
  std::int64_t bytes = 0;
  for (std::size_t v = 0; v < kept.size(); ++v) bytes += kept[v] == KeptBy::none ? 0 : segment.values[v].bytes;
  return bytes;
}

/// "mlp" of "layers.3.mlp": segments of one kind are treated alike.
std::string kind_of(const Segment& segment) { return segment.name.substr(segment.name.rfind('.') + 1); }

Kept without(const Segment& segment, const std::set<std::string>& dropped) {
  return keep_for_backward(segment, KeptBy::forward,
                           [&](const ValueInfo& v) { return !dropped.contains(kind_of(segment) + "." + v.name); });
}

/// Names of values, "mlp.gate_up", that a selective plan drops: one after the other the one that is cheapest by FLOPs a byte.
std::set<std::string> cheapest_half(const std::vector<Segment>& segments) {
  struct State {
    double flops = 0;
    std::int64_t bytes = 0;
  };
  // One segment of each kind stands for all.
  std::vector<const Segment*> kinds;
  for (const Segment& segment : segments)
    if (!segment.joint && std::ranges::none_of(kinds, [&](const Segment* known) { return kind_of(*known) == kind_of(segment); }))
      kinds.push_back(&segment);
  const auto measure = [&](const std::set<std::string>& dropped) {
    State state;
    for (const Segment* segment : kinds) {
      const Kept kept = without(*segment, dropped);
      state.flops += backward_pass(*segment, 0, kept).remade_flops, state.bytes += kept_bytes(*segment, kept);
    }
    return state;
  };
  std::set<std::string> dropped;
  const State all = measure(dropped);
  for (State now = all; 2 * now.bytes > all.bytes;) {
    std::string best;
    State after;
    double least = 0;
    for (const Segment* segment : kinds)
      for (const ValueInfo& v : segment->values) {
        const std::string name = kind_of(*segment) + "." + v.name;
        if (v.kind != ValueKind::activation || dropped.contains(name)) continue;
        std::set<std::string> more = dropped;
        more.insert(name);
        const State state = measure(more);
        if (state.bytes >= now.bytes) continue;
        const double cost = (state.flops - now.flops) / static_cast<double>(now.bytes - state.bytes);
        if (best.empty() || cost < least) best = name, least = cost, after = state;
      }
    if (best.empty()) break;
    dropped.insert(best);
    now = after;
  }
  return dropped;
}

/// Spans of `every` layers between kept streams; what comes before and after the layers stands alone.
std::vector<ActivationPlan::Span> layer_spans(const std::vector<Segment>& segments, std::int64_t every) {
  std::vector<ActivationPlan::Span> spans;
  const auto layer_of = [&](int s) { return segments[static_cast<std::size_t>(s)].layer; };
  for (int s = 0; s < static_cast<int>(segments.size()); ++s) {
    const int begun = spans.empty() ? -1 : layer_of(spans.back().first);
    if (begun >= 0 && layer_of(s) >= 0 && layer_of(s) - begun < every)
      spans.back().last = s;
    else
      spans.push_back({s, s});
  }
  return spans;
}

}  // namespace

ActivationPlan plan_activations(const std::vector<Segment>& segments, const ActivationKeys& keys) {
  ActivationPlan plan{.kept = {}, .stream_dropped = std::vector<bool>(segments.size(), false), .spans = {}};
  if (keys.recompute == "full") {
    plan.spans = layer_spans(segments, keys.every);
    for (const auto& span : plan.spans)
      for (int s = span.first; s <= span.last; ++s) {
        const Segment& segment = segments[static_cast<std::size_t>(s)];
        // The last of a span makes its values again inside its backward pass, the others in a pass before, whose stream the next one needs.
        plan.kept.push_back(s < span.last ? keep_for_backward(segment, KeptBy::again) : Kept(segment.values.size(), KeptBy::none));
        plan.stream_dropped[static_cast<std::size_t>(s)] = s < span.last;
      }
    return plan;
  }
  const std::set<std::string> dropped = keys.recompute == "selective" ? cheapest_half(segments) : std::set<std::string>{};
  for (int s = 0; s < static_cast<int>(segments.size()); ++s) {
    plan.spans.push_back({s, s});
    plan.kept.push_back(without(segments[static_cast<std::size_t>(s)], dropped));
  }
  return plan;
}

}  // namespace tessera
