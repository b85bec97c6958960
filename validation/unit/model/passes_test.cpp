// Texts and readings of their records: what is kept, what is made again and in which order; and the activation plans made of them.
#include "model/record/passes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/hash.hpp"
#include "model/record/recompute.hpp"
#include "random_models.hpp"

namespace tessera::passes_test {
namespace {

std::set<std::string> kept_names(const Segment& segment, const Kept& kept) {
  std::set<std::string> names;
  for (std::size_t v = 0; v < kept.size(); ++v)
    if (kept[v] != KeptBy::none) names.insert(segment.values[v].name);
  return names;
}

std::vector<std::string> call_names(const Segment& segment, const SegmentPass& pass) {
  std::vector<std::string> names;
  for (const CallRef& ref : pass.calls) names.push_back(call_of(segment, ref).name);
  return names;
}

/// What recompute = "none" keeps.
KeptBy all_kept(const ValueInfo& v) { return v.remade ? KeptBy::none : KeptBy::forward; }

ActivationPlan plan_of(const std::vector<Segment>& segments, const ActivationKeys& keys) {
  return plan_activations(segments, recompute_of(segments, keys));
}

Segment attention(const std::vector<std::string>& overrides = {}) { return attention_segment(model_shape(test::tiny_deck(overrides)), 0); }

/// What the forward text of each segment calls at a shape.
std::vector<std::vector<std::string>> forward_calls(const ModelShape& shape) {
  std::vector<std::vector<std::string>> calls;
  for (const Segment& segment : model_segments(shape)) {
    EXPECT_TRUE(segment.backward.empty() == (shape.feed != Feed::samples)) << segment.name;
    calls.push_back(call_names(segment, forward_pass(segment, 0, Kept(segment.values.size(), KeptBy::none))));
  }
  return calls;
}

// The model is written once: a prompt and a token call what an evaluation calls, but for the caches, the rotations and the head's end.
TEST(Texts, AreOneForSamplesPromptsAndTokens) {
  using Names = std::vector<std::string>;
  const auto without = [](Names names, const Names& dropped) {
    std::erase_if(names, [&](const std::string& name) { return std::ranges::find(dropped, name) != dropped.end(); });
    return names;
  };
  for (const std::vector<std::string>& overrides :
       {std::vector<std::string>{},
        {"model.qk_norm=true", "model.qkv_bias=true"},
        {"model.pattern=LG", R"(model.kinds=[{ name = "L", window = 5, rope_theta = 500.0 }, { name = "G" }])"},
        {"model.tied=true"},
        {"model.norm_placement=both", "model.norm_form=one_plus_weight", "model.qk_norm=true", "model.activation=gelu_tanh",
         "model.embedding_scale=sqrt_width", "model.attention_softcap=2"},
        {"model.norm_placement=post", "model.qk_norm=true", "model.wide_qk_norm=true", "model.activation=gelu"},
        {"model.residual_scale=0.5", "model.embedding_scale=3", "model.attention_scale=0.2"},
        {"model.norm_placement=parallel", "model.qkv_bias=true", "model.mlp_bias=true"},
        {"model.rotary_fraction=0.5"},
        {"model.rope_pairs=neighbours", "model.qk_norm=true"},
        {"model.experts=4", "model.shared_ff_width=8"},
        {"model.experts=4", "model.shared_ff_width=8", "model.shared_gate=false", "model.router_scores=sigmoid", "model.dense_layers=1"}}) {
    const ModelShape shape = model_shape(test::tiny_deck(overrides));
    const TextSize text{.prompt = 7, .capacity = 20};
    const auto samples = forward_calls(shape), prompt = forward_calls(text_shape(shape, text, Feed::prompt)),
               token = forward_calls(text_shape(shape, text, Feed::token));
    ASSERT_EQ(prompt.size(), samples.size());
    ASSERT_EQ(token.size(), samples.size());
    for (std::size_t s = 0; s + 1 < samples.size(); ++s) {
      const Names both = without(samples[s], {"router_losses", "sum_losses router", "add_router_totals"});  // of training and evaluation
      EXPECT_EQ(without(prompt[s], {"fill_caches"}), both);
      Names of_token = without(token[s], {"positions"});
      std::ranges::replace(of_token, std::string("attention_decode"), std::string("attention"));
      EXPECT_EQ(of_token, both);
    }
    EXPECT_EQ(prompt.back(), (Names{"rmsnorm normed", shape.tied ? "linear embedding.weight" : "linear head.weight"}));
    EXPECT_EQ(token.back(), prompt.back());
    EXPECT_EQ(samples.back(), (Names{"rmsnorm normed", "count_rows", "gather_counted_rows normed", prompt.back().back(), "softmax_loss",
                                     "spread_counted_rows losses", "sum_losses", "add_loss"}));
    Names begin{"embedding"};
    begin.insert(begin.end(), shape.rotation.tables.size(), "positions");
    EXPECT_EQ(token.front(), begin);
  }
}

/// Runs a pass on values that are whole numbers: each written value becomes a digest of what its call read, so that another order or a
/// missing call is another number.
class Interpreter {
 public:
  /// Activations live in `memory` by name where they are kept, else inside the pass.
  void run(const Segment& segment, const SegmentPass& pass, const std::string& stream_in, const std::string& stream_out) {
    std::map<int, std::string> inside;
    for (const CallRef& ref : pass.calls) {
      const Call& call = call_of(segment, ref);
      std::string read = call.name;
      for (const Touch& t : call.touches)
        if (t.access != Access::write) read += "|" + get(segment, pass, t.value, inside, stream_in, stream_out);
      for (const Touch& t : call.touches)
        if (t.access != Access::read)
          set(segment, pass, t.value, hash_text(read + "/" + segment.at(t.value).name).hex(), inside, stream_in, stream_out);
    }
  }
  std::map<std::string, std::string> memory;

 private:
  std::string key(const Segment& segment, const SegmentPass& pass, Value v, const std::string& in, const std::string& out) const {
    const ValueInfo& info = segment.at(v);
    if (info.kind == ValueKind::stream_in) return in;
    if (info.kind == ValueKind::stream_out) return out;
    if (info.kind == ValueKind::weight_gradient) return "d " + info.name;
    if (info.kind != ValueKind::activation) return info.name;
    for (const Operand& o : pass.operands)
      if (o.value == v && o.kept_by != KeptBy::none) return segment.name + "." + info.name + (o.kept_by == KeptBy::again ? " again" : "");
    return "";
  }
  std::string get(const Segment& segment, const SegmentPass& pass, Value v, std::map<int, std::string>& inside, const std::string& in,
                  const std::string& out) {
    const std::string name = key(segment, pass, v, in, out);
    if (name.empty()) {
      EXPECT_TRUE(inside.contains(v.id)) << pass.name << " reads " << segment.at(v).name << ", which nobody made";
      return inside[v.id];
    }
    const ValueKind kind = segment.at(v).kind;
    if (kind == ValueKind::activation || kind == ValueKind::stream_in) {
      EXPECT_TRUE(memory.contains(name)) << pass.name << " reads " << name << ", which nobody kept";
    }
    return memory[name];
  }
  void set(const Segment& segment, const SegmentPass& pass, Value v, const std::string& value, std::map<int, std::string>& inside,
           const std::string& in, const std::string& out) {
    const std::string name = key(segment, pass, v, in, out);
    (name.empty() ? inside[v.id] : memory[name]) = value;
  }
};

/// The gradients of a micro-batch under a plan. Bytes that a plan drops are forgotten at once.
std::map<std::string, std::string> gradients(const std::vector<Segment>& segments, const ActivationPlan& plan) {
  Interpreter at;
  const auto stream = [&](int s, bool again) {
    return s < 0 ? std::string("none")
                 : "stream" + std::to_string(s) + (again && plan.stream_dropped[static_cast<std::size_t>(s)] ? " again" : "");
  };
  const auto segment = [&](int s) -> const Segment& { return segments[static_cast<std::size_t>(s)]; };
  const auto kept = [&](int s) -> const Kept& { return plan.kept[static_cast<std::size_t>(s)]; };
  const int n = static_cast<int>(segments.size());
  for (int s = 0; s + 1 < n; ++s) {
    at.run(segment(s), forward_pass(segment(s), s, kept(s)), stream(s - 1, false), stream(s, false));
    if (s > 0 && plan.stream_dropped[static_cast<std::size_t>(s - 1)]) at.memory.erase(stream(s - 1, false));
  }
  for (auto span = plan.spans.rbegin(); span != plan.spans.rend(); ++span) {
    for (int s = span->first; s < span->last; ++s)
      at.run(segment(s), again_pass(segment(s), s, kept(s)), stream(s - 1, true), stream(s, true));
    for (int s = span->last; s >= span->first; --s)
      at.run(segment(s), backward_pass(segment(s), s, kept(s)), stream(s - 1, true), stream(s, true));
  }
  std::map<std::string, std::string> found;
  for (const auto& [name, value] : at.memory)
    if (name.starts_with("d ")) found[name] = value;
  return found;
}

/// The same with parted backward passes, gradients of weights after all others.
std::map<std::string, std::string> parted_gradients(const std::vector<Segment>& segments, const ActivationPlan& plan, bool at_hand) {
  Interpreter at;
  const auto segment = [&](int s) -> const Segment& { return segments[static_cast<std::size_t>(s)]; };
  const auto kept = [&](int s) -> const Kept& { return plan.kept[static_cast<std::size_t>(s)]; };
  const auto dropped = [&](int s) { return s >= 0 && plan.stream_dropped[static_cast<std::size_t>(s)]; };
  const auto stream = [&](int s, bool again) {
    return s < 0 ? std::string("none") : "stream" + std::to_string(s) + (again && dropped(s) ? " again" : "");
  };
  const int n = static_cast<int>(segments.size());
  for (int s = 0; s + 1 < n; ++s) {
    at.run(segment(s), forward_pass(segment(s), s, kept(s)), stream(s - 1, false), stream(s, false));
    if (dropped(s - 1)) at.memory.erase(stream(s - 1, false));
  }
  struct Left {
    int segment = 0;
    PartedBackward parted;
    std::string d_stream;
  };
  std::vector<Left> left;
  for (auto span = plan.spans.rbegin(); span != plan.spans.rend(); ++span) {
    for (int s = span->first; s < span->last; ++s)
      at.run(segment(s), again_pass(segment(s), s, kept(s)), stream(s - 1, true), stream(s, true));
    for (int s = span->last; s >= span->first; --s) {
      left.push_back({s, part_backward(segment(s), s, kept(s), !dropped(s - 1), [&](const ValueInfo&) { return at_hand; }), {}});
      left.back().d_stream = at.memory["d_stream"];
      at.run(segment(s), left.back().parted.inputs, stream(s - 1, true), stream(s, true));
      if (dropped(s - 1)) at.memory.erase(stream(s - 1, true));
    }
  }
  for (const Left& l : left) {
    if (l.parted.reads_d_stream) at.memory["d_stream"] = l.d_stream;
    at.run(segment(l.segment), l.parted.weights, stream(l.segment - 1, false), stream(l.segment, false));
  }
  std::map<std::string, std::string> found;
  for (const auto& [name, value] : at.memory)
    if (name.starts_with("d ")) found[name] = value;
  return found;
}

TEST(Passes, WithoutRecomputeWhatTheBackwardPassReadsIsKept) {
  const Segment plain = attention(), normed = attention({"model.qk_norm=true"});
  EXPECT_EQ(kept_names(plain, keep_for_backward(plain, all_kept)), (std::set<std::string>{"qkv", "context", "lse"}));
  EXPECT_EQ(kept_names(normed, keep_for_backward(normed, all_kept)),
            (std::set<std::string>{"qkv_before_norm", "qk_rstd", "qkv", "context", "lse"}));
  const Segment mlp = mlp_segment(model_shape(test::tiny_deck()), 1);
  EXPECT_EQ(kept_names(mlp, keep_for_backward(mlp, all_kept)), std::set<std::string>{"gate_up"});
}

TEST(Passes, WhatIsNotKeptIsMadeAgainBeforeItIsRead) {
  const Segment segment = attention();
  const Kept kept = keep_for_backward(segment, [](const ValueInfo& v) { return v.name == "qkv" ? KeptBy::forward : KeptBy::none; });
  EXPECT_EQ(kept_names(segment, kept), std::set<std::string>{"qkv"});
  EXPECT_EQ(call_names(segment, backward_pass(segment, 0, kept)),
            (std::vector<std::string>{"attention", "weight_gradient layers.0.attention.wo", "input_gradient layers.0.attention.wo",
                                      "attention_backward", "rope_backward", "rmsnorm normed", "weight_gradient layers.0.attention.wq",
                                      "input_gradient layers.0.attention.wq", "rmsnorm_backward layers.0.attention.norm"}));
}

TEST(Passes, AKeptValueThatIsMadeAgainAnywayIsNotKept) {
  // Making the context again writes lse too.
  const Segment segment = attention();
  const Kept kept = keep_for_backward(segment, [](const ValueInfo& v) { return v.name == "context" ? KeptBy::none : all_kept(v); });
  EXPECT_EQ(kept_names(segment, kept), std::set<std::string>{"qkv"});
}

TEST(Passes, TheFirstTouchOfASumStartsIt) {
  const Segment mlp = mlp_segment(model_shape(test::tiny_deck()), 0);
  const SegmentPass pass = backward_pass(mlp, 1, keep_for_backward(mlp, all_kept));
  int gradients = 0;
  for (const Operand& o : pass.operands)
    if (mlp.at(o.value).kind == ValueKind::weight_gradient) {
      EXPECT_EQ(o.access, Access::add) << "whoever binds it decides whether the sum begins here";
      ++gradients;
    }
  EXPECT_EQ(gradients, 3);
}

std::vector<Segment> segments_of(const std::vector<std::string>& overrides) {
  return model_segments(model_shape(test::tiny_deck(overrides)));
}

TEST(ActivationPlans, EveryPlanGivesTheSameGradients) {
  for (const char* more : {"model.qk_norm=false", "model.qk_norm=true", "model.attention_sinks=true", "model.norm_placement=parallel"})
    for (int layers : {1, 2, 5}) {
      const auto segments = segments_of({fmt::format("model.layers={}", layers), more, "model.qkv_bias=true"});
      const auto expected = gradients(segments, plan_of(segments, {.recompute = Recompute::none}));
      ASSERT_GT(expected.size(), 5u);
      EXPECT_EQ(gradients(segments, plan_of(segments, {.recompute = Recompute::selective})), expected);
      for (int every : {1, 2, 3, 10})
        EXPECT_EQ(gradients(segments, plan_of(segments, {.recompute = Recompute::full, .every = every})), expected)
            << layers << " " << every;
    }
}

/// Layers that need the blocks of some turns, of all and of none.
constexpr const char* windows = R"(model.kinds=[{ name = "L", window = 4 }, { name = "G" }, { name = "O", window = 1 }])";

/// Of two, three and four ranks in a ring, of models with `more`.
std::vector<std::vector<Segment>> segments_of_rings(const std::vector<std::string>& more = {}) {
  std::vector<std::vector<Segment>> all;
  for (const char* cp : {"2", "3", "4"})
    for (const char* kind : {"model.qk_norm=false", "model.qk_norm=true", "model.attention_sinks=true", windows}) {
      std::vector<std::string> overrides = {fmt::format("mesh.cp={}", cp), "context.method=ring", "model.layers=3", kind,
                                            "batch.sequence_length=24"};
      if (kind == windows) overrides.emplace_back("model.pattern=LGO");
      overrides.insert(overrides.end(), more.begin(), more.end());
      all.push_back(model_segments(cut_over_cp(model_shape(test::tiny_deck(overrides, cp[0] - '0')), 1)));
    }
  return all;
}

// Blocks of keys come into the same bytes in turns, so all calls of a ring are made again together.
TEST(ActivationPlans, EveryPlanOfARingGivesTheSameGradients) {
  for (const auto& segments : segments_of_rings()) {
    const auto expected = gradients(segments, plan_of(segments, {.recompute = Recompute::none}));
    ASSERT_GT(expected.size(), 5u);
    EXPECT_EQ(gradients(segments, plan_of(segments, {.recompute = Recompute::selective})), expected);
    for (int every : {1, 2, 3})
      EXPECT_EQ(gradients(segments, plan_of(segments, {.recompute = Recompute::full, .every = every})), expected) << every;
    for (const LevelCost& level : recompute_levels(segments, {}))
      EXPECT_EQ(gradients(segments, plan_activations(segments, {.early = {}, .late = level.level, .layers = 1, .keep = {}})), expected)
          << describe(level.level);
    for (const char* keep : {"attention.context", "attention.lse", "attention.qkv", "attention.merged", "attention"})
      EXPECT_EQ(gradients(segments, plan_of(segments, {.recompute = Recompute::full, .keep = {keep}})), expected) << keep;
    for (const bool at_hand : {true, false})
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
        EXPECT_EQ(parted_gradients(segments, plan_of(segments, {.recompute = recompute, .every = 1}), at_hand), expected)
            << word_of(recompute);
  }
}

// What attention has made in turns is made a sink's by a call of its own, also where the feed-forward block stands beside.
TEST(ActivationPlans, EveryPlanOfARingSideBySideGivesTheSameGradients) {
  for (const auto& segments : segments_of_rings({"model.norm_placement=parallel"})) {
    const auto expected = gradients(segments, plan_of(segments, {.recompute = Recompute::none}));
    ASSERT_GT(expected.size(), 5u);
    for (const LevelCost& level : recompute_levels(segments, {}))
      EXPECT_EQ(gradients(segments, plan_activations(segments, {.early = {}, .late = level.level, .layers = 1, .keep = {}})), expected)
          << describe(level.level);
    for (const char* keep : {"block.context", "block.lse", "block.merged"})
      EXPECT_EQ(gradients(segments, plan_of(segments, {.recompute = Recompute::full, .keep = {keep}})), expected) << keep;
    for (const bool at_hand : {true, false})
      for (const Recompute recompute : {Recompute::selective, Recompute::full})
        EXPECT_EQ(parted_gradients(segments, plan_of(segments, {.recompute = recompute, .every = 1}), at_hand), expected)
            << word_of(recompute);
  }
}

/// Of tensor-parallel ranks that have the same key head, alone and beside both kinds of context-parallel ones.
std::vector<std::vector<Segment>> segments_of_shared_keys() {
  std::vector<std::vector<Segment>> all;
  for (const char* method : {"", "ulysses", "ring"})
    for (const char* norm : {"false", "true"}) {
      std::vector<std::string> overrides = {"model.layers=3", "model.heads=8", fmt::format("model.qk_norm={}", norm),
                                            "model.qkv_bias=true"};
      if (*method != 0) overrides.insert(overrides.end(), {"mesh.cp=2", fmt::format("context.method={}", method)});
      all.push_back(model_segments(cut_over_tp(model_shape(test::tiny_deck(overrides, *method != 0 ? 2 : 1)), 4, 1)));
    }
  return all;
}

// Parts of keys are gathered, and their gradients meet, whatever is made again and whatever comes later.
TEST(ActivationPlans, EveryPlanOfSharedKeysGivesTheSameGradients) {
  for (const auto& segments : segments_of_shared_keys()) {
    const auto expected = gradients(segments, plan_of(segments, {.recompute = Recompute::none}));
    ASSERT_TRUE(expected.contains("d layers.1.attention.wq"));
    EXPECT_EQ(gradients(segments, plan_of(segments, {.recompute = Recompute::selective})), expected);
    for (int every : {1, 2, 3})
      EXPECT_EQ(gradients(segments, plan_of(segments, {.recompute = Recompute::full, .every = every})), expected) << every;
    for (const char* keep : {"attention.qkv", "attention.qkv_made", "attention.key_parts", "attention"})
      EXPECT_EQ(gradients(segments, plan_of(segments, {.recompute = Recompute::full, .keep = {keep}})), expected) << keep;
    for (const LevelCost& level : recompute_levels(segments, {})) {
      const ActivationPlan plan = plan_activations(segments, {.early = {}, .late = level.level, .layers = 1, .keep = {}});
      EXPECT_EQ(gradients(segments, plan), expected) << describe(level.level);
      for (const bool at_hand : {true, false}) EXPECT_EQ(parted_gradients(segments, plan, at_hand), expected) << describe(level.level);
    }
    for (const bool at_hand : {true, false})
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
        EXPECT_EQ(parted_gradients(segments, plan_of(segments, {.recompute = recompute, .every = 1}), at_hand), expected)
            << word_of(recompute);
  }
}

// Of what the gather moves nothing is kept: where keys are dropped they are made again by gathering again.
TEST(Passes, OfSharedKeysKeepWhatAttentionAloneKeeps) {
  const auto all = segments_of_shared_keys();
  const Segment& segment = all.front()[1];
  EXPECT_EQ(kept_names(segment, keep_for_backward(segment, all_kept)), (std::set<std::string>{"qkv", "context", "lse"}));
  const auto gathers = [&](const Kept& kept) {
    return std::ranges::count(call_names(segment, backward_pass(segment, 0, kept)), "gather key_part");
  };
  EXPECT_EQ(gathers(keep_for_backward(segment, all_kept)), 0);
  EXPECT_EQ(gathers(keep_for_backward(segment, [](const ValueInfo& v) { return v.name == "qkv" ? KeptBy::none : all_kept(v); })), 1);
}

TEST(Passes, OfARingKeepWhatAttentionAloneKeeps) {
  for (const auto& segments : segments_of_rings()) {
    const Segment& segment = segments[1];
    const auto without = [&](const char* name) {
      return kept_names(segment,
                        keep_for_backward(segment, [&](const ValueInfo& v) { return v.name == name ? KeptBy::none : all_kept(v); }));
    };
    std::set<std::string> all = {"qkv", "context", "lse"};
    if (without("").contains("qk_rstd")) all.insert({"qkv_before_norm", "qk_rstd"});
    EXPECT_EQ(without(""), all);
    all.erase("context"), all.erase("lse");
    EXPECT_EQ(without("context"), all) << "the ring writes both";
    EXPECT_EQ(without("lse"), all);
  }
}

TEST(ActivationPlans, EveryPlanOfExpertsGivesTheSameGradients) {
  for (const char* shared : {"0", "8"}) {
    const auto segments = segments_of({"model.layers=3", "model.experts=4", fmt::format("model.shared_ff_width={}", shared)});
    const auto expected = gradients(segments, plan_of(segments, {.recompute = Recompute::none}));
    ASSERT_EQ(expected.contains("d layers.1.moe.shared.w_gate"), shared[0] == '8');
    EXPECT_EQ(gradients(segments, plan_of(segments, {.recompute = Recompute::selective})), expected);
    for (int every : {1, 2, 3})
      EXPECT_EQ(gradients(segments, plan_of(segments, {.recompute = Recompute::full, .every = every})), expected) << every;
    for (const LevelCost& level : recompute_levels(segments, {}))
      EXPECT_EQ(gradients(segments, plan_activations(segments, {.early = {}, .late = level.level, .layers = 1, .keep = {}})), expected)
          << describe(level.level);
    EXPECT_EQ(gradients(segments, plan_of(segments, {.recompute = Recompute::full, .keep = {"moe.gate_up", "moe.activated", "moe.rows"}})),
              expected);
  }
}

// Whatever is kept, whatever stands between the two: what gradients of weights read is as it was.
TEST(PartedBackward, GivesTheSameGradients) {
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {},
           {"model.qk_norm=true", "model.qkv_bias=true"},
           {"model.experts=4"},
           {"model.experts=4", "model.shared_ff_width=8"},
           {"model.norm_placement=both", "model.norm_form=one_plus_weight", "model.qk_norm=true", "model.activation=gelu_tanh",
            "model.embedding_scale=sqrt_width", "model.attention_softcap=2"},
           {"model.norm_placement=post", "model.qk_norm=true", "model.wide_qk_norm=true", "model.activation=gelu"},
           {"model.residual_scale=0.5", "model.logit_softcap=3", "model.head_bias=true", "model.experts=4"},
           {"model.norm_placement=post", "model.experts=4", "model.shared_ff_width=8"},
           {"model.norm_placement=parallel", "model.norm_form=layer_norm_no_bias", "model.qk_norm=true", "model.mlp_bias=true"},
           {"model.norm_placement=parallel", "model.norm_form=layer_norm", "model.residual_scale=0.5", "model.attention_out_bias=true",
            "model.gated=false", "model.activation=gelu"},
           {"model.dense_layers=1", "model.experts=4", "model.shared_ff_width=8", "model.shared_gate=false", "model.router_scores=sigmoid"},
           {"model.experts=4", "model.pattern=DE", R"(model.kinds=[{ name = "D", experts = false }, { name = "E", window = 5 }])"},
           {"model.pattern=LG", R"(model.kinds=[{ name = "L", window = 5, rope_theta = 500.0 }, { name = "G" }])"}}) {
    std::vector<std::string> overrides = more;
    overrides.push_back("model.layers=3");
    const auto segments = segments_of(overrides);
    const auto expected = gradients(segments, plan_of(segments, {.recompute = Recompute::none}));
    for (const bool at_hand : {true, false}) {
      for (const Recompute recompute : {Recompute::none, Recompute::selective})
        EXPECT_EQ(parted_gradients(segments, plan_of(segments, {.recompute = recompute}), at_hand), expected) << word_of(recompute);
      for (const int every : {1, 2, 3})
        EXPECT_EQ(parted_gradients(segments, plan_of(segments, {.recompute = Recompute::full, .every = every}), at_hand), expected)
            << every;
      for (const LevelCost& level : recompute_levels(segments, {}))
        EXPECT_EQ(
            parted_gradients(segments, plan_activations(segments, {.early = {}, .late = level.level, .layers = 1, .keep = {}}), at_hand),
            expected)
            << describe(level.level);
    }
  }
}

// What a stage before this one waits for has no product of a weight's gradient; those of norms come with their inputs.
TEST(PartedBackward, PutsOffTheProductsOfWeights) {
  const Segment mlp = mlp_segment(model_shape(test::tiny_deck()), 0);
  const PartedBackward parted = part_backward(mlp, 1, keep_for_backward(mlp, [](const ValueInfo& v) { return all_kept(v); }), true,
                                              [](const ValueInfo&) { return true; });
  EXPECT_EQ(call_names(mlp, parted.inputs),
            (std::vector<std::string>{"input_gradient layers.0.mlp.w_down", "swiglu_backward", "rmsnorm normed",
                                      "input_gradient layers.0.mlp.w_gate", "rmsnorm_backward layers.0.mlp.norm"}));
  EXPECT_EQ(call_names(mlp, parted.weights),
            (std::vector<std::string>{"weight_gradient layers.0.mlp.w_down", "rmsnorm normed", "weight_gradient layers.0.mlp.w_gate"}));
  EXPECT_TRUE(parted.reads_d_stream);
  std::set<std::string> waiting;
  for (const Value v : parted.waiting) waiting.insert(mlp.at(v).name);
  EXPECT_EQ(waiting, (std::set<std::string>{"d_activated", "gate_up"})) << "in whose places activation and gradient are";
  // A norm's weight that would have to be gathered for it: what it makes cannot wait, since its gradient takes its place.
  const PartedBackward away = part_backward(mlp, 1, keep_for_backward(mlp, [](const ValueInfo& v) { return all_kept(v); }), true,
                                            [](const ValueInfo&) { return false; });
  EXPECT_EQ(call_names(mlp, away.weights), (std::vector<std::string>{"weight_gradient layers.0.mlp.w_down"}));
}

// Logits are never held whole, so neither are their gradients: those of the head's matrix are made with them.
TEST(PartedBackward, LeavesTheHeadWhole) {
  const Segment head = head_segment(model_shape(test::tiny_deck()));
  const PartedBackward parted = part_backward(head, 5, Kept(head.values.size(), KeptBy::none), true, [](const ValueInfo&) { return true; });
  EXPECT_TRUE(parted.weights.calls.empty());
  EXPECT_EQ(parted.inputs.calls.size(), head.backward.size());
}

TEST(ActivationPlans, FullKeepsTheStreamOfEveryNthLayerAlone) {
  const auto segments = segments_of({"model.layers=5"});
  for (int every : {1, 2, 3, 5, 9}) {
    const ActivationPlan plan = plan_of(segments, {.recompute = Recompute::full, .every = every});
    for (std::size_t s = 0; s < segments.size(); ++s) {
      EXPECT_TRUE(std::ranges::none_of(plan.kept[s], [](KeptBy by) { return by == KeptBy::forward; })) << segments[s].name;
      const int layer = segments[s].layer;
      const bool ends_span = segments[s].name.ends_with("mlp") && ((layer + 1) % every == 0 || layer == 4);
      EXPECT_EQ(plan.stream_dropped[s], layer >= 0 && !ends_span) << segments[s].name << " " << every;
    }
  }
}

/// FLOPs of a micro-batch that make values again.
double recomputed_flops(const std::vector<Segment>& segments, const ActivationPlan& plan) {
  double flops = 0;
  for (const auto& span : plan.spans)
    for (int s = span.first; s <= span.last; ++s) {
      const auto i = static_cast<std::size_t>(s);
      if (s < span.last) flops += again_pass(segments[i], s, plan.kept[i]).remade_flops;
      flops += backward_pass(segments[i], s, plan.kept[i]).remade_flops;
    }
  return flops;
}

TEST(ActivationPlans, SelectiveHalvesTheBytesForLessThanFull) {
  const auto segments = segments_of({"model.layers=3"});
  const auto bytes = [&](const ActivationPlan& plan) {
    std::int64_t sum = 0;
    for (std::size_t s = 0; s < segments.size(); ++s)
      for (std::size_t v = 0; v < plan.kept[s].size(); ++v) sum += plan.kept[s][v] == KeptBy::forward ? segments[s].values[v].bytes : 0;
    return sum;
  };
  const ActivationPlan none = plan_of(segments, {.recompute = Recompute::none}),
                       some = plan_of(segments, {.recompute = Recompute::selective}),
                       full = plan_of(segments, {.recompute = Recompute::full});
  EXPECT_LE(2 * bytes(some), bytes(none));
  EXPECT_GT(bytes(some), 0);
  EXPECT_EQ(recomputed_flops(segments, none), 0);
  EXPECT_GT(recomputed_flops(segments, some), 0);
  EXPECT_LT(recomputed_flops(segments, some), recomputed_flops(segments, full));
  // Full makes all products of the layers again but each span's last one, whose output nobody needs.
  double forward = 0, last = 0;
  for (const Segment& segment : segments)
    if (segment.layer >= 0)
      for (const Call& call : segment.forward) {
        forward += call.flops;
        if (call.name.ends_with("w_down")) last += call.flops;
      }
  EXPECT_EQ(recomputed_flops(segments, full), forward - last);
}

std::int64_t kept_forward(const std::vector<Segment>& segments, const ActivationPlan& plan) {
  std::int64_t sum = 0;
  for (std::size_t s = 0; s < segments.size(); ++s)
    for (std::size_t v = 0; v < plan.kept[s].size(); ++v) sum += plan.kept[s][v] == KeptBy::forward ? segments[s].values[v].bytes : 0;
  return sum;
}

TEST(ActivationPlans, MixturesOfLevelsGiveTheSameGradientsForTheFlopsThatTheySay) {
  for (const char* norm : {"false", "true"}) {
    const auto segments = segments_of({"model.layers=3", fmt::format("model.qk_norm={}", norm)});
    const auto expected = gradients(segments, plan_of(segments, {.recompute = Recompute::none}));
    const std::vector<LevelCost> levels = recompute_levels(segments, {});
    ASSERT_GE(levels.size(), 4u);
    EXPECT_TRUE(levels.front().level.dropped.empty()) << "the cheapest drops nothing";
    for (const LevelCost& early : levels)
      for (const LevelCost& late : levels)
        for (std::int64_t n = 0; n <= 3; ++n) {
          const ActivationPlan plan = plan_activations(segments, {.early = early.level, .late = late.level, .layers = n, .keep = {}});
          EXPECT_EQ(gradients(segments, plan), expected) << describe(early.level) << ", " << n << ", " << describe(late.level);
          if (early.level.every > 1 || late.level.every > 1) continue;  // a span that is cut short makes less again
          EXPECT_DOUBLE_EQ(recomputed_flops(segments, plan),
                           static_cast<double>(n) * early.flops + static_cast<double>(3 - n) * late.flops);
        }
    for (std::size_t i = 1; i < levels.size(); ++i) {
      EXPECT_GE(levels[i].flops, levels[i - 1].flops);
      EXPECT_LT(levels[i].bytes, levels[i - 1].bytes);
    }
  }
}

TEST(ActivationPlans, WhatTheDeckKeepsIsNotMadeAgain) {
  const auto segments = segments_of({"model.layers=4"});
  EXPECT_EQ(fault_of_keep(segments, {"mlp.gate_up"}), "");
  EXPECT_NE(fault_of_keep(segments, {"mlp.activated"}), "") << "which no backward pass reads";
  EXPECT_THROW(kept_values(segments, {"mlp.activate"}), Error);
  const auto expected = gradients(segments, plan_of(segments, {.recompute = Recompute::none}));
  for (const Recompute mode : {Recompute::selective, Recompute::full})
    for (std::int64_t every : {1, 2}) {
      const ActivationPlan without = plan_of(segments, {.recompute = mode, .every = every});
      for (const std::vector<std::string>& keep : std::vector<std::vector<std::string>>{{"attention"},
                                                                                        {"mlp"},
                                                                                        {"attention", "mlp"},
                                                                                        {"attention.context"},
                                                                                        {"mlp.gate_up", "mlp.normed"},
                                                                                        {"mlp.normed"},
                                                                                        {"attention.qkv"}}) {
        const ActivationPlan plan = plan_of(segments, {.recompute = mode, .every = every, .keep = keep});
        EXPECT_EQ(gradients(segments, plan), expected) << word_of(mode) << every << keep[0];
        if (mode == Recompute::full) {
          EXPECT_LE(recomputed_flops(segments, plan), recomputed_flops(segments, without)) << every << keep[0];
        }
      }
      const ActivationPlan attention = plan_of(segments, {.recompute = Recompute::full, .every = every, .keep = {"attention"}});
      EXPECT_GT(kept_forward(segments, attention),
                kept_forward(segments, plan_of(segments, {.recompute = Recompute::full, .every = every})));
      for (std::size_t s = 0; s < segments.size(); ++s)
        for (std::size_t v = 0; v < attention.kept[s].size(); ++v)
          if (segments[s].name.ends_with("attention") && segments[s].values[v].name == "context") {
            EXPECT_EQ(attention.kept[s][v], KeptBy::forward) << segments[s].name;
          }
    }
}

TEST(ActivationPlans, NamesThatAreNoneAreRefusedWithThoseThatThereAre) {
  const auto segments = segments_of({});
  EXPECT_EQ(fault_of_keep(segments, {"attention", "mlp.gate_up"}), "");
  const std::string fault = fault_of_keep(segments, {"mlp", "atention.qkv"});
  for (const char* part : {"\"atention.qkv\"", "did you mean \"attention.qkv\"?", "mlp.gate_up", "attention.lse"})
    EXPECT_NE(fault.find(part), std::string::npos) << fault;
  EXPECT_EQ(fault.find("d_context"), std::string::npos) << "what the backward pass alone makes cannot be kept: " << fault;
  EXPECT_EQ(fault.find("qkv_before_norm"), std::string::npos) << "this model has no QK-norm: " << fault;
  EXPECT_NE(fault_of_keep(segments, {"attention.qkv_before_norm"}), "");
  EXPECT_EQ(fault_of_keep(segments_of({"model.qk_norm=true"}), {"attention.qkv_before_norm"}), "");
  EXPECT_THROW(kept_values(segments, {"head"}), Error);
}

TEST(Texts, OfTheHeadHaveAsManyValuesForManyChunksAsForOne) {
  ModelShape shape = cut_over_tp(model_shape(test::tiny_deck()), 2, 1);
  shape.loss_chunk = shape.tokens();
  const std::size_t one = head_segment(shape).values.size();
  shape.loss_chunk = 1;
  EXPECT_EQ(head_segment(shape).values.size(), one);
}

// Cut at its collectives a pass makes the same calls in the same order, and no part waits for what it does not touch.
TEST(CutAtExchanges, KeepsTheCallsAndPartsThemAtCollectives) {
  const ModelShape whole = model_shape(test::tiny_deck()), over_cp = model_shape(test::tiny_deck({"mesh.cp=2", "model.kv_heads=4"}, 2)),
                   ring = model_shape(test::tiny_deck({"mesh.cp=3", "context.method=ring"}, 3));
  for (const ModelShape& shape : {whole, cut_over_tp(whole, 2, 1), cut_over_tp(whole, 4, 2), over_cp, cut_over_tp(over_cp, 2, 1), ring,
                                  cut_over_tp(ring, 2, 1), cut_over_tp(ring, 4, 2)})
    for (const Segment& segment : model_segments(shape)) {
      const Kept kept = keep_for_backward(segment, [](const ValueInfo& v) { return v.remade ? KeptBy::none : KeptBy::forward; });
      for (const SegmentPass& pass : {forward_pass(segment, 0, kept), backward_pass(segment, 0, kept)}) {
        const std::vector<SegmentPass> parts = cut_at_exchanges(segment, pass);
        std::vector<std::string> names;
        double flops = 0;
        for (const SegmentPass& part : parts) {
          const bool exchanges = exchange_of(segment, part) != nullptr;
          for (const std::string& name : call_names(segment, part)) names.push_back(name);
          if (exchanges) {
            EXPECT_EQ(part.calls.size(), 1u);
            EXPECT_EQ(part.operands.size(), 2u);
          }
          for (std::size_t c = 1; c < part.calls.size(); ++c) EXPECT_FALSE(call_of(segment, part.calls[c]).exchange) << part.name;
          EXPECT_EQ(part.whole, pass.name);
          flops += part.flops;
        }
        EXPECT_EQ(names, call_names(segment, pass));
        EXPECT_DOUBLE_EQ(flops, pass.flops);
        const bool exchanges = shape.tp > 1 || (shape.cp > 1 && segment.name.ends_with("attention"));
        EXPECT_EQ(parts.size() > 1, exchanges) << pass.name;
      }
    }
}

}  // namespace
}  // namespace tessera::passes_test
