// What a token costs, by hand.
#include "model/record/flops.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "random_models.hpp"

namespace tessera::flops_test {
namespace {

FlopsPerToken flops_of(const std::vector<std::string>& overrides) { return flops_per_token(test::tiny_deck(overrides)); }

// tiny_deck: C 32, 4 query heads and 2 key heads of 8 features, F 48, V 61, 2 layers, T 12.
constexpr double qkv = 32 * 64, wo = 32 * 32, gate_up = 2 * 32 * 48, down = 32 * 48, head = 32 * 61, layer = qkv + wo + gate_up + down;
constexpr double attention = 4 * 4 * 8;  // of a layer's forward pass, for a token and another

TEST(Flops, Gpt2SizedLlamaByHand) {
  const FlopsPerToken f = flops_of({"model.layers=12", "model.width=768", "model.heads=12", "model.kv_heads=12", "model.head_dim=64",
                                    "model.ff_width=2048", "model.vocab=50257", "batch.sequence_length=1024"});
  // 6 x (12 x (768 x 2304 + 768 x 768 + 3 x 768 x 2048) + 50257 x 768) + 12 x 12 x 12 x 64 x 1024
  EXPECT_EQ(f.full(1024), 854438400.0);
  EXPECT_EQ(f.causal(1024), 797815296.0);
}

TEST(Flops, Llama3With70BillionByHand) {
  const FlopsPerToken f = flops_of({"model.layers=80", "model.width=8192", "model.heads=64", "model.kv_heads=8", "model.head_dim=128",
                                    "model.ff_width=28672", "model.vocab=128256", "batch.sequence_length=8192"});
  // A layer: 8192 x (64 + 16) x 128 + 8192 x 8192 + 3 x 8192 x 28672 = 855,638,016; the head 1,050,673,152; attention 12 x 80 x 64 x 128 x
  // 8192.
  EXPECT_EQ(f.full(8192), 6 * (80 * 855638016.0 + 1050673152.0) + 64424509440.0);
}

TEST(Flops, OnlyExpertsThatTakeATokenCount) {
  const FlopsPerToken f = flops_of({"model.experts=8", "model.experts_per_token=2", "model.expert_ff_width=40", "model.shared_ff_width=24",
                                    "experts.capacity_factor=0.5"});
  // A layer: attention, 8 + 1 rows of the router, 3 x 32 x (2 x 40 + 24).
  EXPECT_EQ(f.full(12), 6 * (2 * (qkv + wo + 32 * 9 + 3 * 32 * 104) + head) + 3 * 2 * attention * 12);
}

TEST(Flops, TheFirstLayersWithoutExpertsCostTheirOwn) {
  const FlopsPerToken f = flops_of({"model.experts=8", "model.experts_per_token=2", "model.expert_ff_width=40", "model.shared_ff_width=24",
                                    "model.shared_gate=false", "model.router_scores=sigmoid", "model.dense_layers=1"});
  EXPECT_EQ(f.full(12), 6 * (layer + (qkv + wo + 32 * 8 + 3 * 32 * 104) + head) + 3 * 2 * attention * 12);
}

TEST(Flops, LayersWithoutExpertsAnywhereCostTheirOwn) {
  const std::vector<std::string> experts = {"model.experts=8", "model.experts_per_token=2", "model.expert_ff_width=40"};
  std::vector<std::string> first = experts, second = experts;
  first.emplace_back("model.dense_layers=1");
  second.insert(second.end(), {"model.pattern=ED", R"(model.kinds=[{ name = "E" }, { name = "D", experts = false }])"});
  EXPECT_EQ(flops_of(second).full(12), flops_of(first).full(12));
  EXPECT_NE(flops_of(second).full(12), flops_of(experts).full(12));
}

TEST(Flops, ATiedHeadCostsAsMuch) { EXPECT_EQ(flops_of({"model.tied=true"}).full(12), flops_of({}).full(12)); }

TEST(Flops, OfATokenWhateverTheMeshAndTheChunks) {
  const double whole = flops_of({}).full(12);
  EXPECT_EQ(whole, 6 * (2 * layer + head) + 3 * 2 * attention * 12);
  EXPECT_EQ(flops_of({"kernels.loss_chunk=5"}).full(12), whole);
  EXPECT_EQ(flops_per_token(test::tiny_deck({"mesh.cp=2", "context.method=ring"}, 2)).full(12), whole);
  EXPECT_EQ(flops_per_token(test::tiny_deck({"mesh.tp=2"}, 2)).full(12), whole);
}

TEST(Flops, FrozenProductsHaveNoGradientsOfWeights) {
  const FlopsPerToken f = flops_of({"model.freeze=[\"layers.*.mlp.w_*\"]"});
  EXPECT_EQ(f.products, 6 * (2 * (qkv + wo) + head) + 4 * 2 * (gate_up + down));
  EXPECT_EQ(f.of_attention(12), 3 * 2 * attention * 12);
}

TEST(Flops, BelowTheLowestTrainedTensorThereIsNoBackwardPass) {
  // Of layer 1 wo and what is above it; the product of q, k and v has no gradient, and so has attention.
  const std::string w = "layers.1.attention.w";
  const FlopsPerToken f =
      flops_of({fmt::format(R"(model.freeze=["embedding.*", "layers.0.*", "layers.1.attention.norm", "{}q", "{}k", "{}v"])", w, w, w)});
  EXPECT_EQ(f.products, 2 * layer + 2 * qkv + 4 * wo + 6 * (gate_up + down) + 6 * head);
  EXPECT_EQ(f.of_attention(12), 2 * attention * 12);
  const FlopsPerToken head_alone = flops_of({R"(model.freeze=["embedding.*", "layers.*"])"});
  EXPECT_EQ(head_alone.products, 2 * 2 * layer + 6 * head);
}

TEST(Flops, AdaptersCostTheirOwnProducts) {
  const FlopsPerToken f = flops_of({"lora.rank=4", R"(lora.targets=["wo", "w_down"])"});
  // Beside wo an adapter has 4 x (32 + 32) numbers, beside w_down 4 x (48 + 32). The lowest is that of wo in layer 0: what enters it needs
  // no gradient, so neither the frozen product nor the adapter's A goes on, and attention has a backward pass in layer 1 alone.
  const double small = 4 * (32 + 32), wide = 4 * (48 + 32);
  const double frozen = 4 * (2 * (qkv + wo + gate_up + down) + head) - 2 * (qkv + wo);
  EXPECT_EQ(f.products, frozen + 6 * 2 * (small + wide) - 2 * 4 * 32);
  EXPECT_EQ(f.of_attention(12), (attention + 3 * attention) * 12);
}

TEST(Flops, AWindowCostsTheKeysThatItShows) {
  const double none = flops_of({}).of_attention(12);
  // Of twelve tokens the first five see 1 to 5 keys and the others 5 each; twice the mean of 7 windows' triangle is 5 (2 - 5 / 12).
  EXPECT_DOUBLE_EQ(flops_of({"model.window=5"}).of_attention(12), none / 12 * 5 * (2 - 5.0 / 12));
  EXPECT_EQ(flops_of({"model.window=12"}).of_attention(12), none);
  EXPECT_EQ(flops_of({"model.window=400"}).of_attention(12), none);
  const FlopsPerToken half =
      flops_of({"model.pattern=LG", R"(model.kinds=[{ name = "L", window = 5, rope_theta = 500.0 }, { name = "G" }])"});
  EXPECT_DOUBLE_EQ(half.of_attention(12), (none + flops_of({"model.window=5"}).of_attention(12)) / 2);
  EXPECT_DOUBLE_EQ(half.of_attention(3), none / 4) << "a document that a window holds whole";
}

TEST(Flops, APlanWithMaskedDocumentsNamesABound) {
  EXPECT_EQ(describe_flops(test::tiny_deck({})).find("at most"), std::string::npos);
  const std::string masked = describe_flops(test::tiny_deck({"data.document_mask=true"}));
  EXPECT_TRUE(masked.starts_with("at most ")) << masked;
}

}  // namespace
}  // namespace tessera::flops_test
