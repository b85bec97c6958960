// The table of families: of a model there is one, its config.json says it both ways, and every tensor has a name.
#include "families/family.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>

#include "families/names.hpp"
#include "families/read_config.hpp"
#include "families/write_config.hpp"

namespace tessera::family_test {
namespace {

/// All that tells families apart.
std::vector<ModelKeys> models() {
  std::vector<ModelKeys> all;
  for (int bits = 0; bits < 64; ++bits) {
    const auto bit = [&](int n) { return (bits >> n & 1) != 0; };
    ModelKeys m{.layers = 2, .width = bit(5) ? 36 : 32, .heads = 8, .kv_heads = 2, .head_dim = 8, .ff_width = 48, .vocab = 64};
    m.qk_norm = bit(0), m.qkv_bias = bit(1);
    if (bit(2)) m.experts = 4, m.expert_ff_width = 24, m.shared_ff_width = bit(3) ? 16 : 0, m.normalize_top_k = bit(4);
    all.push_back(m);
  }
  return all;
}

TEST(Family, OfEveryModelThereIsOneAtMost) {
  for (const ModelKeys& m : models())
    EXPECT_LE(std::ranges::count_if(families(), [&](const Family& family) { return family.has(m); }), 1)
        << m.experts << m.qk_norm << m.qkv_bias << m.shared_ff_width << m.normalize_top_k << m.width;
}

TEST(Family, EachHasAModelWhoseConfigurationReadsBack) {
  for (const Family& family : families()) {
    int seen = 0;
    for (const ModelKeys& m : models()) {
      if (!family.has(m)) continue;
      ++seen;
      Deck deck;
      deck.model = m;
      std::vector<Fault> faults;
      const ModelSource source = read_huggingface_config(huggingface_config(deck, DType::bf16), "config.json", faults);
      for (const Fault& fault : faults) ADD_FAILURE() << fault.str();
      ModelKeys expected = m;
      if (family.type == "mixtral") expected.ff_width = m.expert_ff_width;  // it has one key for both, and no layer the first
      EXPECT_EQ(source.model, expected) << family.type;
      EXPECT_EQ(source.architecture, family.architecture);
      EXPECT_EQ(source.output_bias, family.output_bias && m.qkv_bias);
    }
    EXPECT_GT(seen, 0) << family.type;
  }
}

TEST(TensorNames, OfAFamilyTakeThePlaceOfTheUsualOnes) {
  const ModelKeys plain;
  for (const Family& family : families())
    for (const TensorName& row : family.names) {
      std::string ours;
      for (const char c : row.ours) c == '#' ? ours += "3" : ours += c;
      EXPECT_NE(TensorNames(plain).of(ours), "") << row.ours << " is no tensor of ours";
      EXPECT_EQ(std::ranges::count(row.ours, '#'), std::ranges::count(row.theirs, '#')) << row.ours;
    }
}

TEST(TensorNames, KeepTheNumbersInTheirOrder) {
  ModelKeys mixtral;
  mixtral.experts = 12;
  EXPECT_EQ(TensorNames(mixtral).of("layers.10.moe.experts.7.w_up"), "model.layers.10.block_sparse_moe.experts.7.w3.weight");
  EXPECT_EQ(TensorNames(mixtral).of("layers.10.moe.norm"), "model.layers.10.post_attention_layernorm.weight");
  EXPECT_EQ(TensorNames(ModelKeys{}).of("layers.10.moe.experts.7.w_up"), "model.layers.10.mlp.experts.7.up_proj.weight");
  EXPECT_EQ(TensorNames(mixtral).of("layers.1.moe.router_bias"), "") << "no class that is exported has it";
  EXPECT_EQ(TensorNames(mixtral).of("layers.1.nothing"), "");
  EXPECT_EQ(module_words("layers.0.moe.experts.1.w_down"), (std::vector<std::string_view>{"down_proj", "w2"}));
  EXPECT_EQ(module_words("layers.0.attention.wo"), (std::vector<std::string_view>{"o_proj"}));
}

}  // namespace
}  // namespace tessera::family_test
