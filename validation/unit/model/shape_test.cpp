// Numbers of a model by hand.
#include "model/table/shape.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <variant>

#include "deck/schema/schema.hpp"
#include "model/calls/attention.hpp"
#include "random_models.hpp"

namespace tessera::shape_test {
namespace {

TEST(Shape, TextsDropNothing) {
  const ModelShape s = model_shape(test::tiny_deck({"model.experts=8", "experts.capacity_factor=1.0"}));
  EXPECT_EQ(s.expert_capacity(), 6);  // 24 tokens, 2 choices each, over 8 experts
  EXPECT_EQ(s.expert_rows(), 48);
  EXPECT_NE(describe_experts(s).find("at most 6 of the 24 tokens"), std::string::npos);
  const ModelShape prompt = text_shape(s, {.prompt = 10, .capacity = 20}, Feed::prompt);
  EXPECT_EQ(prompt.expert_capacity(), 10);
  EXPECT_EQ(prompt.expert_rows(), 20);
  EXPECT_NE(describe_experts(prompt).find("dropless: 20 rows"), std::string::npos);
}

TEST(Shape, OfFewerKeyHeadsThanTensorParallelRanksNeighboursHaveOne) {
  const ModelShape whole = model_shape(test::tiny_deck());  // four query heads, two key heads of eight features
  const ModelShape two = cut_over_tp(whole, 2, 1), four = cut_over_tp(whole, 4, 3);
  EXPECT_FALSE(two.shares_keys());
  EXPECT_EQ(two.attention.G, 1);
  EXPECT_EQ(two.own_qkv_width(), two.attention.qkv_width());
  EXPECT_TRUE(four.shares_keys());
  EXPECT_EQ(four.keys_shared, 2);
  EXPECT_EQ(four.attention.G, 1);
  EXPECT_EQ(four.attention.qkv_width(), 3 * 8) << "what attention reads: whole heads";
  EXPECT_EQ(four.own_qkv_width(), 8 + 2 * 4) << "what a product makes: the head's half";
  EXPECT_EQ(4 * four.own_qkv_width(), whole.attention.qkv_width()) << "all ranks together: each once";
  EXPECT_FALSE(inside_attention(four).shares_keys());
  EXPECT_FALSE(on_own_rows(four).shares_keys());
}

/// Changes a number or a flag; false where the key holds something else.
bool change(const Key& key, Deck& deck) {
  return std::visit(
      [&](const auto& field) {
        if constexpr (std::is_same_v<std::decay_t<decltype(field)>, ModeField>) {
          return false;
        } else {
          auto& value = field(deck);
          using T = std::decay_t<decltype(value)>;
          if constexpr (std::is_same_v<T, bool>)
            value = !value;
          else if constexpr (std::is_arithmetic_v<T>)
            value = value + T{1};
          return std::is_arithmetic_v<T>;
        }
      },
      key.field);
}

// Each row of [model] says which record it is of; it changes that one at most.
TEST(Shape, ARecordHoldsTheTraitsThatItReads) {
  const Deck plain = test::tiny_deck({"model.experts=8", "model.experts_per_token=2"});
  const ModelShape before = model_shape(plain);
  std::map<ReadBy, int> changed;
  for (const Key& key : deck_keys()) {
    Deck deck = plain;
    if (!key.name.starts_with("model.") || key.read_by == ReadBy::size || key.read_by == ReadBy::layers || !change(key, deck)) continue;
    const ModelShape s = model_shape(deck);
    const std::pair<bool, std::vector<ReadBy>> records[] = {{s.attention == before.attention, {ReadBy::attention}},
                                                            {s.block == before.block, {ReadBy::block}},
                                                            {s.router == before.router, {ReadBy::router, ReadBy::balance}},
                                                            {s.rotation == before.rotation, {ReadBy::rotation, ReadBy::angles}}};
    for (const auto& [same, readers] : records)
      if (std::ranges::count(readers, key.read_by) == 0)
        EXPECT_TRUE(same) << key.name;
      else
        changed[readers[0]] += same ? 0 : 1;
  }
  for (const ReadBy reader : {ReadBy::attention, ReadBy::block, ReadBy::router, ReadBy::rotation}) EXPECT_GT(changed[reader], 0);
}

// A tensor-parallel rank does a layer's experts for its own rows of the stream; room is of these.
TEST(Shape, TensorAndContextParallelRanksHaveAPartOfTheTokens) {
  const ModelShape s = on_own_rows(cut_over_tp(
      model_shape(test::tiny_deck({"model.experts=8", "experts.capacity_factor=1.0", "model.kv_heads=4", "mesh.tp=2", "mesh.cp=2"}, 4)), 2,
      1));
  EXPECT_EQ(s.tokens(), 6);
  EXPECT_EQ(s.rows(), 6);
  EXPECT_EQ(s.parts(), 4);
  EXPECT_EQ(s.expert_capacity(), 2) << "6 tokens, 2 choices each, over 8 experts";
  EXPECT_EQ(s.expert_rows(), 12);
  EXPECT_NE(describe_experts(s).find("at most 2 of the 6 tokens of a rank's part of a micro-batch"), std::string::npos)
      << describe_experts(s);
}

TEST(Shape, BlocksHoldWhatTokensCouldAskForOrExpertsTake) {
  const auto shape = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"model.experts=8", "model.experts_per_token=2"});
    return model_shape(test::tiny_deck(overrides, 8));
  };
  // 24 tokens, which each choose two of eight experts.
  const ModelShape alone = shape({}), two = shape({"mesh.ep=2"}), eight = shape({"mesh.ep=8"});
  EXPECT_EQ(alone.arriving_rows(), alone.expert_rows());
  EXPECT_EQ(two.expert_block(), 48) << "all choices fall on one rank";
  EXPECT_EQ(two.arriving_rows(), 96);
  EXPECT_EQ(eight.expert_block(), 24) << "a token goes to an expert once";
  EXPECT_EQ(cut_over_ep(two, 1).first_expert(), 4);
  EXPECT_NE(
      describe_experts(two).find("4 of them on each of 2 ranks, which send each other blocks of 48 rows, as many as their tokens could "
                                 "choose there. A rank has space for 96 rows, 12.00 KiB"),
      std::string::npos)
      << describe_experts(two);
  const ModelShape dropping = shape({"mesh.ep=2", "experts.capacity_factor=1.0"});
  EXPECT_EQ(dropping.expert_block(), 4 * 6);
  EXPECT_NE(describe_experts(dropping).find("the experts' limit there"), std::string::npos);
}

TEST(Shape, ContextParallelRanksHaveEveryPositionOnce) {
  for (const char* method : {"ulysses", "ring"})
    for (const int cp : {2, 4}) {
      const ModelShape s = model_shape(
          test::tiny_deck({fmt::format("mesh.cp={}", cp), fmt::format("context.method={}", method), "batch.sequence_length=16"}, cp));
      std::vector<int> had(16, 0);
      std::int64_t causal = -1;  // pairs of a query and a key that it sees
      for (int rank = 0; rank < cp; ++rank) {
        std::int64_t rows = 0, pairs = 0;
        for (const Range& part : positions_of(s, rank))
          for (std::int64_t t = part.begin; t < part.end; ++t) ++had[static_cast<std::size_t>(t)], ++rows, pairs += t + 1;
        EXPECT_EQ(rows * s.B, s.tokens());
        if (s.ring && causal >= 0) {
          EXPECT_EQ(pairs, causal) << "as much to do for each rank";
        }
        causal = pairs;
      }
      EXPECT_EQ(had, std::vector<int>(16, 1)) << method;
      const ModelShape inside = inside_attention(s);
      EXPECT_EQ(inside.T, s.ring ? 16 / cp : 16);
      EXPECT_EQ(inside.attention.H, s.ring ? s.attention.H : s.attention.H / cp);
      EXPECT_EQ(inside.tokens() * inside.attention.H, s.tokens() * s.attention.H);
    }
}

TEST(Shape, TheLossChunkIsBoundedByTheMicroBatch) {
  EXPECT_EQ(model_shape(test::tiny_deck()).loss_chunk, 24);
  EXPECT_EQ(model_shape(test::tiny_deck({"kernels.loss_chunk=7"})).loss_chunk, 7);
  EXPECT_EQ(model_shape(test::tiny_deck({"kernels.loss_chunk=7000"})).loss_chunk, 24);
  EXPECT_EQ(model_shape(test::tiny_deck({"kernels.loss_chunk=7"})).logit_rows, 7);
}

TEST(Shape, OnAHostGradientsOfLogitsAreManyAndLogitsHot) {
  using Chunk = std::pair<std::int64_t, std::int64_t>;
  const auto rows = [](const std::string& vocab, const std::string& compute, const std::string& width = "768") {
    const ModelShape s = model_shape(test::tiny_deck({"model.vocab=" + vocab, "model.width=" + width, "batch.sequence_length=4096",
                                                      "batch.micro=1", "batch.global=16", "precision.compute=" + compute}));
    return Chunk(s.loss_chunk, s.logit_rows);
  };
  EXPECT_EQ(rows("50304", "bf16"), Chunk(1024, 256));          // four of at most 1334; 333 rows of fp32 are 64 MiB
  EXPECT_EQ(rows("50304", "fp32"), Chunk(640, 256));           // seven of at most 667
  EXPECT_EQ(rows("128256", "bf16"), Chunk(512, 128));          // eight of at most 523
  EXPECT_EQ(rows("1000000", "bf16"), Chunk(512, 128));         // never fewer
  EXPECT_EQ(rows("257", "bf16"), Chunk(4096, 4096));           // all
  EXPECT_EQ(rows("50304", "bf16", "3072"), Chunk(1024, 512));  // a sixth of the width
}

TEST(Shape, OnAGpuLossChunksAreLargeAndEqual) {
  const auto chunk = [](const std::string& vocab, const std::string& length) {
    Deck deck = test::tiny_deck({"model.vocab=" + vocab, "batch.sequence_length=" + length, "batch.micro=1", "batch.global=16"});
    deck.run.device = RunDevice::cuda;  // which the parser refuses in a build without it
    return model_shape(deck).loss_chunk;
  };
  EXPECT_EQ(chunk("50304", "4096"), 2048);   // two of at most 2668
  EXPECT_EQ(chunk("128256", "8192"), 2048);  // four
  EXPECT_EQ(chunk("50304", "1024"), 1024);   // one
  EXPECT_EQ(chunk("257", "100"), 100);
}

// Rows of a latent and a rotated key, of which a window holds so many; a state and the tail of a convolution, which do not grow.
TEST(Caches, HoldRowsOfTokensOrAState) {
  const auto bytes = [](std::int64_t capacity, std::int64_t window, const Cache& cache) {
    ModelShape s = text_shape(model_shape(test::tiny_deck({"model.window=" + std::to_string(window)})), {.prompt = 3, .capacity = capacity},
                              Feed::token);
    Recorder r(in_layer(s, 0), "layers.0.attention", 0);
    const Value value = r.cache(cache);
    EXPECT_EQ(r.cache(cache), value) << "what a prompt fills a token reads";
    return r.at(value).bytes;
  };
  const Cache latent{.name = "latent", .of_token = 576, .dtype = DType::bf16}, state{.name = "state", .of_sequence = 4096},
      tail{.name = "tail", .of_sequence = 3 * 96, .dtype = DType::bf16};
  EXPECT_EQ(bytes(100, 0, latent), 2 * 100 * 576);
  EXPECT_EQ(bytes(100, 7, latent), 2 * 7 * 576);
  for (const std::int64_t capacity : {10, 1000}) {
    EXPECT_EQ(bytes(capacity, 0, state), 4 * 4096);
    EXPECT_EQ(bytes(capacity, 7, tail), 2 * 3 * 96);
  }
  for (const Cache& cache : attention_caches(model_shape(test::tiny_deck())))
    EXPECT_EQ(bytes(100, 0, cache), 4 * 100 * 2 * 8) << cache.name;
}

}  // namespace
}  // namespace tessera::shape_test
