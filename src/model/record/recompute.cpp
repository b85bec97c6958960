#include "model/record/recompute.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ranges>

#include "deck/schema/hints.hpp"

namespace tessera {
namespace {

std::int64_t kept_bytes(const Segment& segment, const Kept& kept) {
  std::int64_t bytes = 0;
  for (std::size_t v = 0; v < kept.size(); ++v) bytes += kept[v] == KeptBy::none ? 0 : segment.values[v].bytes;
  return bytes;
}

/// "mlp" of "layers.3.mlp": segments of one kind are treated alike.
std::string kind_of(const Segment& segment) { return segment.name.substr(segment.name.rfind('.') + 1); }
std::string name_of(const Segment& segment, const ValueInfo& v) { return kind_of(segment) + "." + v.name; }

/// The value and those that the same forward calls make: a call that makes one of them again makes all. None where no forward call does.
std::vector<std::string> made_with(const Segment& segment, std::size_t value) {
  const auto writes = [&](const Touch& t) { return t.value.id == static_cast<int>(value) && t.access != Access::read; };
  int turns = 0;
  for (const Call& call : segment.forward)
    if (std::ranges::any_of(call.touches, writes)) turns = std::max(turns, call.turns);
  std::vector<std::string> names;
  for (const Call& call : segment.forward)
    if (std::ranges::any_of(call.touches, writes) || (turns > 0 && call.turns == turns))
      for (const Touch& touch : call.touches)
        if (touch.access != Access::read && segment.at(touch.value).kind == ValueKind::activation)
          names.push_back(name_of(segment, segment.at(touch.value)));
  return names;
}

/// The segment of each kind in the layers that stands for all: the last of those with the longest backward text, of which frozen tensors
/// take a part.
std::vector<const Segment*> kinds_of(const std::vector<Segment>& segments) {
  std::vector<const Segment*> kinds;
  for (const Segment& segment : segments) {
    if (segment.layer < 0) continue;
    const auto known = std::ranges::find_if(kinds, [&](const Segment* other) { return kind_of(*other) == kind_of(segment); });
    if (known == kinds.end())
      kinds.push_back(&segment);
    else if (segment.backward.size() >= (*known)->backward.size())
      *known = &segment;
  }
  return kinds;
}

/// What is dropped is made again inside the backward pass, or by a pass before it where `again`.
Kept kept_with(const Segment& segment, const std::set<std::string>& dropped, const std::set<std::string>& keep, bool again = false) {
  return keep_for_backward(segment, [&](const ValueInfo& v) {
    const std::string name = name_of(segment, v);
    if (keep.contains(name)) return KeptBy::forward;
    if (v.remade) return KeptBy::none;
    return !dropped.contains(name) ? KeptBy::forward : again ? KeptBy::again : KeptBy::none;
  });
}

struct Cost {
  double flops = 0;
  int calls = 0;
  std::int64_t bytes = 0;
  Cost& operator+=(const Cost& o) { return flops += o.flops, calls += o.calls, bytes += o.bytes, *this; }
};

Cost cost_of(const SegmentPass& pass) {
  return {.flops = pass.remade_flops, .calls = static_cast<int>(std::ranges::count(pass.calls, false, &CallRef::backward)), .bytes = 0};
}

Cost cost_without(const Segment& segment, const std::set<std::string>& dropped, const std::set<std::string>& keep) {
  const Kept kept = kept_with(segment, dropped, keep);
  Cost cost = cost_of(backward_pass(segment, 0, kept));
  cost.bytes = kept_bytes(segment, kept);
  return cost;
}

/// Names of values, "mlp.gate_up", that a selective plan drops: one after the other the one that is cheapest by FLOPs a byte.
std::set<std::string> cheapest_half(const std::vector<Segment>& segments, const std::set<std::string>& keep) {
  const std::vector<const Segment*> kinds = kinds_of(segments);
  const auto measure = [&](const std::set<std::string>& dropped) {
    Cost cost;
    for (const Segment* segment : kinds) cost += cost_without(*segment, dropped, keep);
    return cost;
  };
  std::set<std::string> dropped;
  const Cost all = measure(dropped);
  for (Cost now = all; 2 * now.bytes > all.bytes;) {
    std::string best;
    Cost after;
    double least = 0;
    for (const std::string& name : value_names(segments)) {
      if (dropped.contains(name)) continue;
      std::set<std::string> more = dropped;
      more.insert(name);
      const Cost cost = measure(more);
      if (cost.bytes >= now.bytes) continue;
      const double price = (cost.flops - now.flops) / static_cast<double>(now.bytes - cost.bytes);
      if (best.empty() || price < least) best = name, least = price, after = cost;
    }
    if (best.empty()) break;
    dropped.insert(best);
    now = after;
  }
  return dropped;
}

RecomputeLevel full_level(const std::vector<Segment>& segments, std::int64_t every) {
  const std::vector<std::string> all = value_names(segments);
  return {{all.begin(), all.end()}, every};
}

/// Spans of `every` layers between kept streams, begun anew where another level begins; what is not in a layer stands alone.
std::vector<ActivationPlan::Span> layer_spans(const std::vector<Segment>& segments, const RecomputeChoice& choice,
                                              const std::set<int>& begins) {
  std::vector<ActivationPlan::Span> spans;
  const auto layer_of = [&](int s) { return segments[static_cast<std::size_t>(s)].layer; };
  const auto is_early = [&](int s) { return layer_of(s) < choice.layers; };
  for (int s = 0; s < static_cast<int>(segments.size()); ++s) {
    const int first = spans.empty() ? -1 : spans.back().first, begun = first < 0 ? -1 : layer_of(first);
    const std::int64_t every = (is_early(s) ? choice.early : choice.late).every;
    if (begun >= 0 && layer_of(s) >= 0 && layer_of(s) - begun < every && is_early(first) == is_early(s) && !begins.contains(s))
      spans.back().last = s;
    else
      spans.push_back({s, s});
  }
  return spans;
}

bool cheaper(const LevelCost& a, const LevelCost& b) { return a.flops != b.flops ? a.flops < b.flops : a.calls < b.calls; }

std::vector<LevelCost> without_dominated(std::vector<LevelCost> levels) {
  std::ranges::stable_sort(levels,
                           [](const LevelCost& a, const LevelCost& b) { return cheaper(a, b) || (!cheaper(b, a) && a.bytes < b.bytes); });
  std::vector<LevelCost> left;
  for (LevelCost& level : levels)
    if (left.empty() || level.bytes < left.back().bytes) left.push_back(std::move(level));
  return left;
}

/// Of every subset of the values that a kind of segment may drop, those that keep less than all that cost less.
std::vector<LevelCost> subsets_of(const Segment& segment, const std::set<std::string>& keep) {
  std::vector<std::string> names;
  const Kept all = kept_with(segment, {}, keep);
  for (std::size_t v = 0; v < all.size(); ++v)
    if (all[v] != KeptBy::none && !keep.contains(name_of(segment, segment.values[v]))) names.push_back(name_of(segment, segment.values[v]));
  constexpr std::size_t most = 10;  // 1024 subsets; a segment that keeps more drops the rest together with the last of these
  std::vector<LevelCost> levels;
  const std::size_t count = std::min(most, names.size());
  for (std::size_t bits = 0; bits < std::size_t{1} << count; ++bits) {
    LevelCost level;
    for (std::size_t i = 0; i < names.size(); ++i)
      if (bits >> std::min(i, count - 1) & 1) level.level.dropped.insert(names[i]);
    const Cost cost = cost_without(segment, level.level.dropped, keep);
    level.flops = cost.flops, level.calls = cost.calls, level.bytes = cost.bytes;
    levels.push_back(std::move(level));
  }
  return without_dominated(std::move(levels));
}

/// A layer in a span of `every`: its segments are made again by a pass before their backward passes, but the last of the span.
LevelCost cost_of_span(const std::vector<const Segment*>& kinds, const std::vector<Segment>& segments, std::int64_t every,
                       const std::set<std::string>& keep) {
  LevelCost level{.level = full_level(segments, every)};
  Cost span;
  for (std::int64_t layer = 0; layer < every; ++layer)
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      const Segment& segment = *kinds[k];
      const bool last = layer + 1 == every && k + 1 == kinds.size();
      const Kept kept = kept_with(segment, level.level.dropped, keep, !last);
      span += cost_of(backward_pass(segment, 0, kept));
      if (!last) span += cost_of(again_pass(segment, 0, kept));
      for (std::size_t v = 0; v < kept.size(); ++v) span.bytes += kept[v] == KeptBy::forward ? segment.values[v].bytes : 0;
      for (const ValueInfo& v : segment.values) span.bytes += last && v.kind == ValueKind::stream_out ? v.bytes : 0;
    }
  level.flops = span.flops / static_cast<double>(every), level.calls = span.calls / static_cast<int>(every);
  level.bytes = span.bytes / every;
  return level;
}

}  // namespace

namespace {

/// Values that a backward pass reads, or that what it reads is made of.
std::vector<bool> needed_by_backward(const Segment& segment) {
  std::vector<bool> needed(segment.values.size(), false);
  const auto take_reads = [&](const Call& call) {
    for (const Touch& t : call.touches)
      if (t.access != Access::write) needed[static_cast<std::size_t>(t.value.id)] = true;
  };
  for (const Call& call : segment.backward) take_reads(call);
  for (const Call& call : segment.forward | std::views::reverse)
    if (std::ranges::any_of(call.touches,
                            [&](const Touch& t) { return t.access != Access::read && needed[static_cast<std::size_t>(t.value.id)]; }))
      take_reads(call);
  return needed;
}

/// By "attention.qkv"; of those that a backward pass needs, or of all.
std::vector<std::string> names_of_values(const std::vector<Segment>& segments, bool needed_alone) {
  std::vector<std::string> names;
  for (const Segment* segment : kinds_of(segments)) {
    const std::vector<bool> needed = needed_by_backward(*segment);
    for (std::size_t v = 0; v < segment->values.size(); ++v)
      if (segment->values[v].kind == ValueKind::activation && (needed[v] || !needed_alone) && !made_with(*segment, v).empty())
        names.push_back(name_of(*segment, segment->values[v]));
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

std::vector<std::string> value_names(const std::vector<Segment>& segments) { return names_of_values(segments, false); }

namespace {
std::string fault_of_names(const std::vector<Segment>& segments, const std::vector<std::string>& keep, std::vector<std::string> known) {
  for (const Segment* segment : kinds_of(segments)) known.push_back(kind_of(*segment));
  const std::vector<std::string_view> words(known.begin(), known.end());
  for (const std::string& name : keep) {
    if (std::ranges::find(known, name) != known.end()) continue;
    const std::string_view near = nearest(name, words);
    return fmt::format("\"{}\" is neither a value that the backward pass of a layer needs nor a kind of segment{}; there are {}", name,
                       near.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", near), fmt::join(known, ", "));
  }
  return "";
}
}  // namespace

std::string fault_of_keep(const std::vector<Segment>& segments, const std::vector<std::string>& keep) {
  return fault_of_names(segments, keep, names_of_values(segments, true));
}

std::set<std::string> kept_values(const std::vector<Segment>& segments, const std::vector<std::string>& keep) {
  if (const std::string fault = fault_of_names(segments, keep, value_names(segments)); !fault.empty())
    fail(ExitCode::usage, "activation.keep: {}", fault);
  std::set<std::string> values;
  for (const std::string& name : keep) {
    for (const Segment* segment : kinds_of(segments))
      for (std::size_t v = 0; v < segment->values.size(); ++v) {
        const std::vector<std::string> together = made_with(*segment, v);
        if (name_of(*segment, segment->values[v]) == name) values.insert(together.begin(), together.end());
        if (kind_of(*segment) == name && !segment->values[v].remade && !together.empty())
          values.insert(name_of(*segment, segment->values[v]));
      }
  }
  return values;
}

RecomputeChoice recompute_of(const std::vector<Segment>& segments, const ActivationKeys& keys) {
  TESSERA_REQUIRE(keys.recompute != Recompute::automatic, "activation.recompute = auto has not been settled");
  RecomputeChoice choice{.early = {}, .late = {}, .layers = 0, .keep = kept_values(segments, keys.keep)};
  if (keys.recompute == Recompute::selective) choice.late = {cheapest_half(segments, choice.keep), 0};
  if (keys.recompute == Recompute::full) choice.late = full_level(segments, keys.every);
  return choice;
}

ActivationPlan plan_activations(const std::vector<Segment>& segments, const RecomputeChoice& choice, const std::set<int>& begins) {
  ActivationPlan plan{
      .kept = {}, .stream_dropped = std::vector<bool>(segments.size(), false), .spans = layer_spans(segments, choice, begins)};
  for (const auto& span : plan.spans)
    for (int s = span.first; s <= span.last; ++s) {
      const Segment& segment = segments[static_cast<std::size_t>(s)];
      const RecomputeLevel& level = segment.layer < choice.layers ? choice.early : choice.late;
      // The last of a span makes its values again inside its backward pass, the others in a pass before, whose stream the next one needs.
      plan.kept.push_back(kept_with(segment, level.dropped, choice.keep, s < span.last));
      plan.stream_dropped[static_cast<std::size_t>(s)] = s < span.last;
    }
  return plan;
}

bool representatives_have_all_calls(const std::vector<Segment>& segments) {
  const auto calls_of = [](const Segment& segment) {
    const std::string layer = fmt::format("layers.{}.", segment.layer);
    std::set<std::string> names;
    for (const Call& call : segment.backward) {
      const std::size_t at = call.name.find(layer);
      names.insert(at == call.name.npos ? call.name : call.name.substr(0, at) + call.name.substr(at + layer.size()));
    }
    return names;
  };
  for (const Segment* kind : kinds_of(segments)) {
    const std::set<std::string> all = calls_of(*kind);
    for (const Segment& segment : segments)
      if (segment.layer >= 0 && kind_of(segment) == kind_of(*kind) && !std::ranges::includes(all, calls_of(segment))) return false;
  }
  return true;
}

std::vector<LevelCost> recompute_levels(const std::vector<Segment>& segments, const std::set<std::string>& keep) {
  const std::vector<const Segment*> kinds = kinds_of(segments);
  std::vector<LevelCost> levels{{}};
  for (const Segment* segment : kinds) {
    std::vector<LevelCost> joined;
    std::int64_t stream = 0;
    for (const ValueInfo& v : segment->values) stream += v.kind == ValueKind::stream_out ? v.bytes : 0;
    for (const LevelCost& before : levels)
      for (const LevelCost& subset : subsets_of(*segment, keep)) {
        LevelCost& level = joined.emplace_back(before);
        level.level.dropped.insert(subset.level.dropped.begin(), subset.level.dropped.end());
        level.flops += subset.flops, level.calls += subset.calls, level.bytes += subset.bytes + stream;
      }
    levels = without_dominated(std::move(joined));
  }
  const std::int64_t layers = 1 + std::ranges::max(segments, {}, &Segment::layer).layer;
  for (std::int64_t every = 1; every <= std::min<std::int64_t>(layers, 8); every *= 2)
    levels.push_back(cost_of_span(kinds, segments, every, keep));
  return without_dominated(std::move(levels));
}

std::string describe(const RecomputeLevel& level) {
  if (level.every > 0)
    return fmt::format("all, with a stored stream every {}", level.every == 1 ? "layer" : fmt::format("{} layers", level.every));
  return level.dropped.empty() ? "nothing" : fmt::format("{}", fmt::join(level.dropped, ", "));
}

}  // namespace tessera
