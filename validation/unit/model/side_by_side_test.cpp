// Layers whose attention and MLP stand side by side: a segment each, with one gather and one sum over tensor-parallel ranks each way.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "model/record/recompute.hpp"
#include "model/table/parameters.hpp"
#include "random_models.hpp"

namespace tessera::side_by_side_test {
namespace {

using Names = std::vector<std::string>;

Names exchanges(const std::vector<Call>& calls) {
  Names names;
  for (const Call& call : calls)
    if (call.exchange) names.push_back(call.name);
  return names;
}

std::vector<Segment> over_two_ranks(const char* placement) {
  return model_segments(cut_over_tp(model_shape(test::tiny_deck({std::string("model.norm_placement=") + placement}, 2)), 2, 0));
}

TEST(SideBySide, ALayerIsASegmentWithHalfTheExchanges) {
  const auto apart = over_two_ranks("pre"), beside = over_two_ranks("parallel");
  ASSERT_EQ(apart.size(), 2 * (beside.size() - 2) + 2);
  EXPECT_EQ(beside[1].name, "layers.0.block");
  EXPECT_EQ(exchanges(beside[1].forward), (Names{"gather normed", "reduce sums"}));
  EXPECT_EQ(exchanges(beside[1].backward), (Names{"gather d_stream", "reduce d_sums"}));
  for (const int s : {1, 2}) EXPECT_EQ(exchanges(apart[s].forward), exchanges(beside[1].forward));
  for (const int s : {1, 2}) EXPECT_EQ(exchanges(apart[s].backward), exchanges(beside[1].backward));
}

TEST(SideBySide, BothReadOneNorm) {
  const Deck deck = test::tiny_deck({"model.norm_placement=parallel", "model.norm_form=layer_norm_no_bias"});
  Names norms;
  for (const Parameter& p : parameter_table(deck.model))
    if (p.layer == 0 && p.name.find("norm") != p.name.npos) norms.push_back(p.name);
  EXPECT_EQ(norms, Names{"layers.0.attention.norm"});
  const Segment block = side_by_side_segment(model_shape(deck), 0);
  EXPECT_EQ(std::ranges::count(block.forward, "layer_norm", &Call::kernel), 1);
  EXPECT_EQ(std::ranges::count(block.backward, "layer_norm_backward", &Call::kernel), 1);
}

TEST(SideBySide, ValuesAreKeptByTheNameOfTheBlock) {
  const auto segments = model_segments(model_shape(test::tiny_deck({"model.norm_placement=parallel"})));
  EXPECT_EQ(fault_of_keep(segments, {"block.qkv", "block.gate_up", "block"}), "");
  EXPECT_NE(fault_of_keep(segments, {"mlp"}).find("there are block"), std::string::npos) << fault_of_keep(segments, {"mlp"});
}

}  // namespace
}  // namespace tessera::side_by_side_test
