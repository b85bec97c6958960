// Every set of values that recompute may drop, beside every set of tensors without a gradient: the passes read what the backward text
// means. Values are digests of the calls that made them, as the text says and as the passes make them, and memory that nobody wrote holds
// nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "model/record/leave_frozen.hpp"
#include "model/record/passes.hpp"
#include "model/table/frozen.hpp"
#include "random_models.hpp"
#include "validation/unit/sample.hpp"

namespace tessera::frozen_recompute_test {
namespace {

using Digest = std::uint64_t;
using Memory = std::vector<std::optional<Digest>>;

Digest mix(Digest a, Digest b) {
  a ^= b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2);
  a *= 0xff51afd7ed558ccdu;
  return a ^ (a >> 32);
}

/// Sums of a step go on over micro-batches: nothing else is made of them.
bool is_sum(ValueKind kind) {
  return kind == ValueKind::weight_gradient || kind == ValueKind::scalars || kind == ValueKind::router_totals ||
         kind == ValueKind::group_losses;
}
bool is_made(ValueKind kind) { return kind == ValueKind::activation || kind == ValueKind::stream_out; }

/// A segment and the digests of its calls, which stay those of the whole text where frozen tensors have taken some of it.
class Text {
 public:
  explicit Text(const Segment& segment) : segment(segment) {
    for (const auto* calls : {&segment.forward, &segment.backward}) {
      std::map<std::string, int> times;
      auto& digests = calls == &segment.forward ? forward_ : backward_;
      for (const Call& call : *calls) {
        std::string name = call.name;
        for (const Touch& t : call.touches) name += " " + std::to_string(t.value.id);
        digests.push_back(mix(std::hash<std::string>{}(name), static_cast<Digest>(times[name]++)));
      }
    }
  }
  Memory begin() const {
    Memory memory(segment.values.size());
    for (std::size_t v = 0; v < memory.size(); ++v)
      if (!is_made(segment.values[v].kind)) memory[v] = is_sum(segment.values[v].kind) ? 0 : 1000 + v;
    return memory;
  }
  /// What the call makes of what it finds. Empty: all is well; else the value that nobody has made.
  std::string run(const CallRef& ref, Memory& memory) const {
    const Call& call = call_of(segment, ref);
    Digest read = (ref.backward ? backward_ : forward_)[ref.index];
    for (const Touch& t : call.touches) {
      if (t.access == Access::write || is_sum(segment.at(t.value).kind)) continue;
      if (!memory[index(t.value)]) return call.name + " reads " + segment.at(t.value).name + ", which nobody made";
      read = mix(read, *memory[index(t.value)]);
    }
    if (call.makes_nothing()) return "";
    for (const Touch& t : call.touches)
      if (t.access != Access::read) {
        auto& to = memory[index(t.value)];
        to = is_sum(segment.at(t.value).kind) ? mix(*to, read) : mix(read, static_cast<Digest>(t.value.id));
      }
    return "";
  }
  const Segment& segment;

 private:
  std::vector<Digest> forward_, backward_;
};

/// What a step takes of a segment: sums, and the gradient of the incoming stream.
using Results = std::map<std::string, Digest>;
Results results_of(const Segment& segment, const Memory& memory) {
  Results results;
  for (std::size_t v = 0; v < memory.size(); ++v) {
    const ValueInfo& info = segment.values[v];
    if (is_sum(info.kind) || info.kind == ValueKind::d_stream) results[info.name] = memory[v].value_or(0);
  }
  return results;
}

/// The texts, read as they stand.
Results meant(const Text& text) {
  Memory memory = text.begin();
  for (std::size_t c = 0; !text.segment.joint && c < text.segment.forward.size(); ++c) EXPECT_EQ(text.run({false, c}, memory), "");
  for (std::size_t v = 0; v < memory.size(); ++v)  // the forward pass's own
    if (is_sum(text.segment.values[v].kind)) memory[v] = 0;
  for (std::size_t c = 0; c < text.segment.backward.size(); ++c) EXPECT_EQ(text.run({true, c}, memory), "");
  return results_of(text.segment, memory);
}

/// Runs passes on memory of which those values outlive a pass that it keeps.
class Passes {
 public:
  explicit Passes(const Text& text) : text_(text), kept_(text.begin()) {}
  void run(const SegmentPass& pass) {
    Memory memory = kept_;
    const auto inside = [&](const Operand& o) { return is_made(text_.segment.at(o.value).kind) && o.kept_by == KeptBy::none; };
    for (const Operand& o : pass.operands)
      if (inside(o)) memory[index(o.value)].reset();
    for (const CallRef& ref : pass.calls)
      if (const std::string at_fault = text_.run(ref, memory); !at_fault.empty() && fault.empty()) fault = pass.name + ": " + at_fault;
    if (!fault.empty()) return;
    for (const Operand& o : pass.operands)
      if (!inside(o)) kept_[index(o.value)] = memory[index(o.value)];
  }
  void forget_sums() {
    for (std::size_t v = 0; v < kept_.size(); ++v)
      if (is_sum(text_.segment.values[v].kind)) kept_[v] = 0;
  }
  Memory& memory() { return kept_; }
  std::string fault;

 private:
  const Text& text_;
  Memory kept_;
};

enum class Way { whole, parted, parted_away };
struct Found {
  Results results;
  std::string fault;
};
Found made(const Text& text, const Kept& kept, Way way) {
  const Segment& s = text.segment;
  Passes passes(text);
  const bool again = std::ranges::find(kept, KeptBy::again) != kept.end();
  if (!s.joint) passes.run(forward_pass(s, 0, kept));
  if (again) passes.run(again_pass(s, 0, kept));
  passes.forget_sums();
  if (way == Way::whole) {
    passes.run(backward_pass(s, 0, kept));
  } else {
    const PartedBackward parted = part_backward(s, 0, kept, way == Way::parted, [&](const ValueInfo&) { return way == Way::parted; });
    Memory before = passes.memory();
    passes.run(parted.inputs);
    const Memory after = passes.memory();
    for (std::size_t v = 0; v < before.size(); ++v) {
      if (s.values[v].kind == ValueKind::d_stream && parted.reads_d_stream) passes.memory()[v] = before[v];
      if (s.values[v].kind == ValueKind::stream_in && way == Way::parted_away) passes.memory()[v].reset();
    }
    if (!parted.weights.calls.empty()) passes.run(parted.weights);
    for (std::size_t v = 0; v < before.size(); ++v)
      if (s.values[v].kind == ValueKind::d_stream) passes.memory()[v] = after[v];
  }
  return {results_of(s, passes.memory()), passes.fault};
}

/// Activations that a forward call makes: any of them may be kept or not.
std::vector<std::size_t> choices_of(const Segment& segment) {
  std::set<std::size_t> values;
  for (const Call& call : segment.forward)
    for (const Touch& t : call.touches)
      if (t.access != Access::read && segment.at(t.value).kind == ValueKind::activation) values.insert(index(t.value));
  return {values.begin(), values.end()};
}

/// Gradients that the deck may leave out, each with those of the tensors joined to it.
std::vector<std::string> gradients_of(const Segment& segment) {
  std::vector<std::string> names;
  for (const ValueInfo& v : segment.values)
    if (v.kind == ValueKind::weight_gradient) names.push_back(v.name);
  return names;
}

struct Model {
  std::vector<std::string> overrides;
  int ranks = 1, tp = 1;
};

std::vector<Segment> segments_of(const Model& model, const Deck& deck) {
  ModelShape shape = model_shape(deck);
  if (model.tp > 1) shape = cut_over_tp(shape, model.tp, 1);
  return model_segments(cut_over_cp(cut_over_ep(shape, deck.mesh.ep > 1 ? 1 : 0), deck.mesh.cp > 1 ? 1 : 0));
}

/// The layout of a model of which the gradients that are named, with tensors joined to theirs, are not made.
Layout layout_of(const ModelKeys& model, const std::set<std::string>& frozen) {
  std::vector<Parameter> table = parameter_table(model);
  bool takes = false;
  for (Parameter& p : table) {
    takes = p.joined ? takes : frozen.contains(p.name);
    p.frozen = p.frozen || (takes && p.trained);
  }
  return make_layout(std::move(table), 1, 0);
}

struct Tally {
  long cases = 0, faults = 0;
  std::string first;
};

/// One segment with what is left of its backward text, under sets of kept values.
void try_sets(const Text& text, const Results& all, bool goes_on, test::Sample& sample, Tally& tally, const std::string& where) {
  const Segment& s = text.segment;
  const std::vector<std::size_t> choices = choices_of(s);
  std::set<Kept> seen;
  const std::size_t subsets = std::size_t{1} << std::min<std::size_t>(choices.size(), 20);
  for (const std::size_t bits : sample.of(subsets, 24, 512))
    for (const KeptBy by : {KeptBy::forward, KeptBy::again})
      seen.insert(keep_for_backward(s, [&](const ValueInfo& v) {
        const auto at = std::ranges::find(choices, static_cast<std::size_t>(&v - s.values.data()));
        return at != choices.end() && (bits >> (at - choices.begin()) & 1) != 0 ? by : KeptBy::none;
      }));
  for (const Kept& kept : seen)
    for (const Way way : {Way::whole, Way::parted, Way::parted_away}) {
      const Found found = made(text, kept, way);
      std::string fault = found.fault;
      for (const auto& [name, digest] : found.results)
        if (fault.empty() && (name != "d_stream" || goes_on) && digest != all.at(name)) fault = name + " is another";
      ++tally.cases;
      if (fault.empty() || ++tally.faults > 1) continue;
      tally.first = where + ", kept:";
      for (std::size_t v = 0; v < kept.size(); ++v)
        if (kept[v] != KeptBy::none) tally.first += " " + s.values[v].name + (kept[v] == KeptBy::again ? " (again)" : "");
      tally.first += way == Way::whole ? "" : ", in two parts";
      tally.first += ": " + fault;
    }
}

void try_model(const Model& model, Tally& tally, test::Sample& sample) {
  const Deck deck = test::tiny_deck(model.overrides, model.ranks);
  const std::vector<Segment> whole = segments_of(model, deck);
  const bool adapters = deck.model.lora.rank > 0;
  for (std::size_t s = 0; s < whole.size(); ++s) {
    const Text meaning(whole[s]);
    const Results all = meant(meaning);
    const std::vector<std::string> names = gradients_of(whole[s]);
    const std::size_t subsets = adapters ? 1 : std::size_t{1} << names.size();
    for (const std::size_t bits : sample.of(subsets, 12))
      for (const bool lowest : {false, true}) {
        std::set<std::string> frozen;
        std::string left;
        for (std::size_t i = 0; i < names.size(); ++i)
          if (bits >> i & 1)
            frozen.insert(names[i]);
          else
            left += " " + names[i];
        // Below it nothing is trained, or the gradient of the stream goes on to what is.
        for (std::size_t below = 0; lowest && below < s; ++below)
          for (const std::string& name : gradients_of(whole[below])) frozen.insert(name);
        const Layout layout = layout_of(deck.model, frozen);
        std::vector<Segment> segments = segments_of(model, deck);
        leave_frozen(segments, layout, lowest ? segments.size() : 0);
        if (segments[s].backward.empty()) continue;
        std::size_t first = 0;
        while (first < s && gradients_of(segments[first]).empty()) ++first;
        std::string where = segments[s].name;
        for (const std::string& o : model.overrides) where += " " + o;
        where += model.tp > 1 ? " tp=" + std::to_string(model.tp) : "";
        where += ", trained:" + (adapters ? std::string(" adapters") : left);
        try_sets(Text(segments[s]), all, !lowest || first < s, sample, tally, where);
      }
  }
}

void demand_no_fault(const std::vector<Model>& models) {
  for (Model model : models) {
    Tally tally;
    test::Sample sample;
    model.overrides.insert(model.overrides.begin(), "model.layers=1");
    try_model(model, tally, sample);
    EXPECT_GT(tally.cases, 20);
    EXPECT_EQ(tally.faults, 0) << "of " << tally.cases << " cases, with " << sample.describe() << "; the first: " << tally.first;
  }
}

TEST(FrozenBesideRecompute, AttentionAndMlp) {
  demand_no_fault({{.overrides = {}},
                   {.overrides = {"model.qk_norm=true", "model.qkv_bias=true"}},
                   {.overrides = {}, .tp = 2},
                   {.overrides = {"model.heads=8", "model.qkv_bias=true"}, .tp = 4}});
}

TEST(FrozenBesideRecompute, ContextParallelRanks) {
  for (const char* method : {"ulysses", "ring"}) {
    const std::string key = std::string("context.method=") + method;
    demand_no_fault({{.overrides = {"mesh.cp=2", key}, .ranks = 2},
                     {.overrides = {"mesh.cp=2", key, "model.heads=8", "model.qk_norm=true"}, .ranks = 2, .tp = 4}});
  }
}

TEST(FrozenBesideRecompute, Experts) {
  demand_no_fault({{.overrides = {"model.experts=4"}},
                   {.overrides = {"model.experts=4", "model.shared_ff_width=8"}},
                   {.overrides = {"model.experts=4", "model.shared_ff_width=8", "mesh.ep=2"}, .ranks = 2}});
}

// Adapters beside every set of matrices.
TEST(FrozenBesideRecompute, Adapters) {
  const std::vector<std::string> plain = {"wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down"};
  const std::vector<std::string> experts = {"wq", "wo", "shared.w_up", "shared.w_down", "experts.w_gate", "experts.w_down"};
  test::Sample sample;
  for (const auto* names : {&plain, &experts})
    for (const std::size_t bits : sample.of(std::size_t{1} << names->size(), 20)) {
      std::string targets;
      for (std::size_t i = 0; i < names->size(); ++i)
        if (bits >> i & 1) targets += (targets.empty() ? "\"" : ", \"") + (*names)[i] + "\"";
      if (targets.empty()) continue;
      Model model{.overrides = {"lora.rank=2", "lora.targets=[" + targets + "]"}};
      if (names == &experts) model.overrides.insert(model.overrides.end(), {"model.experts=4", "model.shared_ff_width=8"});
      demand_no_fault({model});
      if (names == &plain) {
        model.tp = 2;
        demand_no_fault({model});
      } else {
        model.overrides.push_back("mesh.ep=2"), model.ranks = 2;
        demand_no_fault({model});
      }
    }
}

}  // namespace
}  // namespace tessera::frozen_recompute_test
