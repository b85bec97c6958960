// What model.freeze leaves: which tensors, in which units, and which calls of the backward texts.
#include "model/table/frozen.hpp"
#include "model/record/leave_frozen.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/check.hpp"
#include "random_models.hpp"

namespace tessera::frozen_test {
namespace {

ModelKeys frozen_model(std::vector<std::string> patterns, const std::vector<std::string>& overrides = {}) {
  ModelKeys model = test::tiny_deck(overrides, 1).model;
  model.freeze = std::move(patterns);
  return model;
}

std::string fault_of(const ModelKeys& model) {
  try {
    parameter_table(model);
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::usage);
    return error.what();
  }
  return "";
}

std::vector<std::string> backward_calls(const Segment& segment) {
  std::vector<std::string> names;
  for (const Call& call : segment.backward) names.push_back(call.name);
  return names;
}

/// The segments of a model with these patterns, of which the first `bottom` begin it.
std::vector<Segment> segments_of(const std::vector<std::string>& patterns, std::size_t bottom = 100) {
  Deck deck = test::tiny_deck({}, 1);
  deck.model.freeze = patterns;
  std::vector<Segment> segments = model_segments(model_shape(deck));
  leave_frozen(segments, make_layout(parameter_table(deck.model), 1, 0), std::min(bottom, segments.size()));
  return segments;
}

TEST(Freeze, PatternsThatCannotBeFollowedAreNamed) {
  EXPECT_EQ(fault_of(frozen_model({"embedding.*", "layers.?.mlp.*"})), "");
  const std::string none = fault_of(frozen_model({"layers.0.*", "layers.0.mlp.w_dwon"}));
  EXPECT_NE(none.find("\"layers.0.mlp.w_dwon\""), none.npos) << none;
  EXPECT_NE(none.find("layers.0.mlp.w_down"), none.npos) << none;
  const std::string half = fault_of(frozen_model({"layers.1.attention.wk"}));
  EXPECT_NE(half.find("one product reads layers.1.attention.wq and layers.1.attention.wk, but only"), half.npos) << half;
  EXPECT_NE(fault_of(frozen_model({"*"})).find("leaves no tensor to train"), std::string::npos);
  const std::vector<std::string> biased = {"model.experts=4", "model.router_balance=bias"};
  const std::string loads = fault_of(frozen_model({"layers.0.*"}, biased));
  EXPECT_NE(loads.find("layers.0.moe.router_bias, which has no gradient"), loads.npos) << loads;
  EXPECT_EQ(fault_of(frozen_model({"layers.0.attention.*"}, biased)), "");
}

TEST(Freeze, FrozenTensorsHaveUnitsOfTheirOwn) {
  test::Random random(7);
  for (int trial = 0; trial < 200; ++trial) {
    ModelKeys model = test::random_model(random);
    model.freeze = {"layers.0.attention.*", "head.norm"};
    const int shards = static_cast<int>(random(1, 4));
    const Layout layout = make_layout(parameter_table(model), shards, random(0, 600));
    std::set<std::string> names;
    std::size_t slots = 0;
    for (const Unit& unit : layout.units) {
      EXPECT_TRUE(names.insert(unit.name).second) << unit.name << " comes twice";
      EXPECT_EQ(unit.frozen, unit.name.ends_with(".frozen"));
      EXPECT_EQ(unit.elements % (shards * shard_block), 0);
      for (const Slot& slot : unit.slots) EXPECT_EQ(layout.table[static_cast<std::size_t>(slot.parameter)].frozen, unit.frozen);
      slots += unit.slots.size();
    }
    EXPECT_EQ(slots, layout.table.size());
  }
}

TEST(Freeze, NoProductMakesAGradientOfAFrozenMatrix) {
  const std::vector<Segment> all = segments_of({}), some = segments_of({"layers.1.mlp.w_*", "layers.1.attention.norm"});
  ASSERT_EQ(all.size(), some.size());
  for (std::size_t s = 0; s < all.size(); ++s) {
    std::vector<std::string> expected = backward_calls(all[s]);
    std::erase_if(expected, [](const std::string& name) { return name.starts_with("weight_gradient layers.1.mlp."); });
    EXPECT_EQ(backward_calls(some[s]), expected) << all[s].name;
    for (const ValueInfo& v : some[s].values)
      if (v.kind == ValueKind::weight_gradient) {
        EXPECT_FALSE(v.name.starts_with("layers.1.mlp.w_") || v.name == "layers.1.attention.norm") << v.name;
      }
  }
}

TEST(Freeze, TheBackwardPassEndsBelowTheLowestTensorThatIsTrained) {
  const std::vector<std::string> patterns = {"embedding.*", "layers.0.*", "layers.1.attention.norm"};
  const std::vector<Segment> segments = segments_of(patterns);
  for (const std::size_t below : {0, 1, 2}) EXPECT_TRUE(segments[below].backward.empty()) << segments[below].name;
  const std::vector<std::string> lowest = backward_calls(segments[3]);
  ASSERT_EQ(segments[3].name, "layers.1.attention");
  EXPECT_EQ(std::ranges::count(lowest, "weight_gradient layers.1.attention.wq"), 1);
  EXPECT_EQ(std::ranges::count(lowest, "input_gradient layers.1.attention.wo"), 1);
  EXPECT_EQ(std::ranges::count(lowest, "input_gradient layers.1.attention.wq"), 0);
  EXPECT_EQ(std::ranges::count(lowest, "rmsnorm_backward layers.1.attention.norm"), 0);
  // A stage of a pipeline that something below may need the gradient of.
  const std::vector<std::string> later = backward_calls(segments_of(patterns, 0)[3]);
  EXPECT_EQ(std::ranges::count(later, "input_gradient layers.1.attention.wq"), 1);
}

}  // namespace
}  // namespace tessera::frozen_test
