// The token-by-token path against the training path, and the prompt in one pass against token by token.
#include "train/text/decoder.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "../model/random_models.hpp"
#include "../plan_alone.hpp"
#include "../relative_difference.hpp"
#include "../scratch.hpp"
#include "../sharded_checkpoint.hpp"
#include "generate/inference.hpp"
#include "memory/runtime.hpp"

namespace tessera::decoder_test {
namespace {

struct Model {
  std::string name;
  std::vector<std::string> overrides;
  double tolerance = 2e-6;
};
void PrintTo(const Model& m, std::ostream* out) { *out << m.name; }

class DecoderOf : public testing::TestWithParam<Model> {};

/// An engine without training has its weights from a copy that trains.
std::unique_ptr<Engine> engine_for(const Deck& deck, const TextSize& text, std::int64_t evaluations = 0) {
  auto made = std::make_unique<Engine>(test::plan_alone(deck, Purpose::generation, evaluations, text));
  const Engine& engine = *made;
  Engine source(test::plan_alone(deck));
  source.initialise_weights();
  for (const Parameter& p : engine.layout().table) {
    const std::size_t bytes = static_cast<std::size_t>(p.shape.elements()) * size_of(deck.precision.compute);
    std::memcpy(const_cast<void*>(engine.weight_address(p.name)), source.weight_address(p.name), bytes);
  }
  return made;
}

TEST_P(DecoderOf, ItsLogitsGiveTheLossOfTheTrainingPath) {
  auto overrides = GetParam().overrides;
  overrides.push_back("batch.global=2");
  const Deck deck = test::tiny_deck(overrides);
  const std::int64_t B = deck.batch.micro, T = deck.batch.sequence_length;
  const auto made = engine_for(deck, {.prompt = 1, .capacity = T}, 1);
  Engine& engine = *made;
  test::Random random(5);
  for (auto& token : engine.tokens(0)) token = static_cast<std::int32_t>(random(0, deck.model.vocab - 1));
  for (auto& token : engine.targets(0)) token = static_cast<std::int32_t>(random(0, deck.model.vocab - 1));
  double sum = 0;
  for (std::int64_t b = 0; b < B; ++b) {
    Decoder decoder(engine);  // begins another text in the caches of the one before
    for (std::int64_t t = 0; t < T; ++t) {
      EXPECT_EQ(decoder.length(), t);
      const auto at = static_cast<std::size_t>(b * T + t);
      decoder.next(engine.tokens(0)[at]);
      const auto logits = decoder.logits();
      ASSERT_EQ(logits.size(), static_cast<std::size_t>(deck.model.vocab));
      double normaliser = 0;
      for (float x : logits) normaliser += std::exp(static_cast<double>(x));
      sum += std::log(normaliser) - logits[static_cast<std::size_t>(engine.targets(0)[at])];
    }
  }
  engine.set_weight(0, 1);
  const double loss = engine.evaluate({.tokens = B * T}).loss;
  EXPECT_NEAR(sum / static_cast<double>(B * T) / loss, 1, GetParam().tolerance);
}

TEST_P(DecoderOf, APromptInOnePassIsThatOfTokenByToken) {
  auto overrides = GetParam().overrides;
  overrides.push_back("batch.global=2");
  const Deck deck = test::tiny_deck(overrides);
  constexpr std::int64_t capacity = 150;  // beyond a tile and a piece of the cache
  std::vector<std::int32_t> tokens;
  test::Random random(7);
  for (std::int64_t i = 0; i < capacity; ++i) tokens.push_back(static_cast<std::int32_t>(random(0, deck.model.vocab - 1)));
  for (const std::int64_t prompt : {1, 2, 7, 131}) {
    const auto at_once = engine_for(deck, {.prompt = prompt, .capacity = capacity}), one_by_one = engine_for(deck, {.capacity = capacity});
    Decoder whole(*at_once), single(*one_by_one);
    whole.start(std::span(tokens).first(static_cast<std::size_t>(prompt)));
    for (std::int64_t i = 0; i < prompt; ++i) single.next(tokens[static_cast<std::size_t>(i)]);
    const double bound = 10 * GetParam().tolerance;  // of logits, where that of the loss is of their mean
    EXPECT_LT(test::relative_difference(whole.logits(), single.logits()), bound) << prompt;
    EXPECT_EQ(whole.length(), prompt);
    for (std::int64_t i = prompt; i < prompt + 3; ++i) {  // which see the prompt in the cache
      whole.next(tokens[static_cast<std::size_t>(i)]), single.next(tokens[static_cast<std::size_t>(i)]);
      EXPECT_LT(test::relative_difference(whole.logits(), single.logits()), bound) << prompt << ", then " << i;
    }
  }
}

// As transformers rotates it: within the context as if there were no scaling, and beyond it by its length; never by what may follow.
TEST(Decoder, ATextIsTurnedByItsLengthSoFar) {
  constexpr std::int64_t context = 8;
  const std::vector<std::int32_t> tokens{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
  const auto logits_of = [&](const std::vector<std::string>& overrides, std::int64_t capacity, std::size_t length) {
    const auto engine = engine_for(test::tiny_deck(overrides), {.prompt = 4, .capacity = capacity});
    Decoder decoder(*engine);
    decoder.start(std::span(tokens).first(4));
    for (std::size_t i = 4; i < length; ++i) decoder.next(tokens[i]);
    const auto logits = decoder.logits();
    return std::vector<float>(logits.begin(), logits.end());
  };
  const std::vector<std::string> plain{"model.heads=2", "model.head_dim=8"};
  for (const std::vector<std::string>& scaling :
       {std::vector<std::string>{"model.rope_scaling=dynamic", "model.rope_factor=4"},
        {"model.rope_scaling=longrope", "model.rope_attention_factor=1", "model.rope_short_factors=[1.0, 1.0, 1.0, 1.0]",
         "model.rope_long_factors=[2.0, 4.0, 16.0, 40.0]"}}) {
    SCOPED_TRACE(scaling.front());
    auto scaled = plain;
    scaled.insert(scaled.end(), scaling.begin(), scaling.end());
    scaled.push_back("model.rope_original_context=" + std::to_string(context));
    for (const std::size_t length : {4, 8, 9, 12}) EXPECT_EQ(logits_of(scaled, 12, length), logits_of(scaled, 100, length)) << length;
    EXPECT_EQ(logits_of(scaled, 100, context), logits_of(plain, 100, context));
    EXPECT_NE(logits_of(scaled, 100, context + 1), logits_of(plain, 100, context + 1));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, DecoderOf,
    testing::Values(
        Model{"untied", {}}, Model{"tied", {"model.tied=true"}}, Model{"qk_norm", {"model.qk_norm=true"}},
        Model{"qkv_bias", {"model.qkv_bias=true"}}, Model{"one_kv_head", {"model.kv_heads=1"}},
        Model{"long", {"batch.sequence_length=140"}}, Model{"llama3", {"model.rope_scaling=llama3", "model.rope_original_context=6"}},
        Model{"odd", {"model.width=23", "model.ff_width=29", "model.head_dim=6", "batch.sequence_length=7"}},
        Model{"window", {"model.window=5"}}, Model{"wide_window", {"model.window=70", "batch.sequence_length=140"}},
        Model{"no_positions", {"model.positions=none", "model.qkv_bias=true"}},
        Model{"learned_positions", {"model.positions=none", "model.learned_positions=150", "batch.sequence_length=140"}},
        Model{"kinds",
              {"model.layers=3", "model.pattern=LG",
               R"(model.kinds=[{ name = "L", window = 3, rope_theta = 500.0 }, { name = "G", window = 0 }])"}},
        Model{"kinds_normed",
              {"model.layers=3", "model.pattern=LNG", "model.qk_norm=true", "model.rope_scaling=yarn",
               R"(model.kinds=[{ name = "L", window = 3, rope_scaling = "none" }, { name = "N", positions = )"
               R"("none" }, { name = "G" }])"}},
        Model{"gemma",
              {"model.layers=3", "model.pattern=LG", R"(model.kinds=[{ name = "L", window = 3, rope_theta = 500.0 }, { name = "G" }])",
               "model.norm_placement=both", "model.norm_form=one_plus_weight", "model.qk_norm=true", "model.activation=gelu_tanh",
               "model.embedding_scale=sqrt_width", "model.attention_softcap=2", "model.logit_softcap=1"}},
        Model{"olmo", {"model.norm_placement=post", "model.qk_norm=true", "model.wide_qk_norm=true", "model.activation=gelu"}},
        Model{"granite", {"model.residual_scale=0.5", "model.embedding_scale=3", "model.attention_scale=0.7", "model.logit_scale=0.25"}},
        Model{"cohere",
              {"model.layers=3", "model.pattern=LG", R"(model.kinds=[{ name = "L", window = 3 }, { name = "G", positions = "none" }])",
               "model.norm_placement=parallel", "model.norm_form=layer_norm_no_bias", "model.rope_pairs=neighbours",
               "model.logit_scale=0.25"}},
        Model{"phi",
              {"model.norm_placement=parallel", "model.norm_form=layer_norm", "model.gated=false", "model.activation=gelu_tanh",
               "model.head_dim=8", "model.rotary_fraction=0.5", "model.qkv_bias=true", "model.mlp_bias=true", "model.head_bias=true"}},
        Model{"side_by_side", {"model.norm_placement=parallel", "model.residual_scale=0.5", "model.mlp_bias=true", "model.qk_norm=true"}},
        Model{"part", {"model.head_dim=8", "model.rotary_fraction=0.5"}},
        Model{"part_normed", {"model.head_dim=12", "model.rotary_fraction=0.5", "model.qk_norm=true"}},
        Model{"neighbours", {"model.rope_pairs=neighbours"}},
        Model{"neighbours_normed", {"model.head_dim=8", "model.rope_pairs=neighbours", "model.rotary_fraction=0.5", "model.qk_norm=true"}},
        Model{"bf16", {"precision.compute=bf16"}, 1e-2}),
    [](const auto& info) { return info.param.name; });

TEST(Decoder, TextLongerThanItsCacheIsADefect) {
  const Deck deck = test::tiny_deck();
  Engine engine(test::plan_text(deck, {.prompt = 1, .capacity = 2}));
  Decoder decoder(engine);
  decoder.next(1);
  decoder.next(2);
  EXPECT_THROW(decoder.next(3), Error);
}

TEST(Decoder, APromptAfterTheFirstTokenOrOfAnotherLengthIsADefect) {
  const Deck deck = test::tiny_deck();
  Engine engine(test::plan_text(deck, {.prompt = 2, .capacity = 5}));
  const std::vector<std::int32_t> two{1, 2}, three{1, 2, 3};
  Decoder decoder(engine);
  EXPECT_THROW(decoder.start(three), Error);
  decoder.start(two);
  EXPECT_THROW(decoder.start(two), Error);
  EXPECT_EQ(decoder.length(), 2);
}

TEST(Decoder, WhatATextWasNotMadeForIsADefect) {
  const Deck deck = test::tiny_deck();
  Engine none(test::plan_alone(deck, Purpose::evaluation, 1)), drawn(test::plan_text(deck, {.capacity = 2})),
      likeliest(test::plan_text(deck, {.capacity = 2, .likeliest = true}));
  EXPECT_THROW(Decoder{none}, Error);
  EXPECT_THROW(Decoder{drawn}.likeliest(), Error);
  EXPECT_THROW(Decoder{likeliest}.logits(), Error);
  EXPECT_THROW(test::plan_text(deck, {.prompt = 3, .capacity = 2}), Error);
}

// Without a word, they once gave token 0 for ever.
TEST(Decoder, LogitsThatAreNoNumbersHaveNoLikeliest) {
  const Deck deck = test::tiny_deck();
  const auto engine = engine_for(deck, {.prompt = 1, .capacity = 2, .likeliest = true});
  Decoder decoder(*engine);
  decoder.next(1);
  EXPECT_GE(decoder.likeliest(), 0);
  static_cast<float*>(const_cast<void*>(engine->weight_address("head.norm")))[0] = std::nanf("");
  decoder.next(2);
  const std::string text = test::error_of(ExitCode::numerics, [&] { decoder.likeliest(); });
  for (const char* part : {"token 2", "tessera inspect CHECKPOINT --verify"}) EXPECT_TRUE(test::has(text, part)) << text;
}

TEST(Decoder, TheModelIsRefusedWhereItDoesNotFitWithTheTextsCaches) {
  const test::Scratch scratch;
  const std::string checkpoint = test::write_sharded(scratch.path(), test::tiny_deck({"memory.host=8 MiB"}), 1);
  load_model(checkpoint, RunDevice::host, {.text = {.prompt = 4, .capacity = 8}});
  const std::string text =
      test::error_of(ExitCode::memory, [&] { load_model(checkpoint, RunDevice::host, {.text = {.prompt = 4, .capacity = 40000}}); });
  for (const char* part : {"memory.host", "8.00 MiB", "--tokens", "--device"}) EXPECT_TRUE(test::has(text, part)) << text;
}

}  // namespace
}  // namespace tessera::decoder_test
