#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "../sample.hpp"
#include "deck/schema/update_keys.hpp"
#include "deck/schema/value.hpp"
#include "small_deck.hpp"

namespace tessera::print_test {
namespace {

std::string read_text(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(Print, ShippedDecksRoundTrip) {
  for (std::string name : {"quickstart", "gpt2_124m", "train_7b", "train_13b", "train_30b", "train_70b", "finetune_70b_offload",
                           "infinity_175b", "mixtral_tiny", "mixtral_8x22b", "gemma3_4b", "olmo3_7b", "gpt_oss_20b"}) {
    for (int ranks : {0, name == "mixtral_8x22b" ? 4 : 1, 2}) {  // whose experts are on two ranks at least
      ParsedDeck parsed = parse_deck(std::string(TESSERA_SOURCE_DIR) + "/inputs/" + name + ".toml", {}, ranks);
      ASSERT_EQ(faults_of(parsed), "");
      ParsedDeck again = parse_deck_text(print_deck(parsed.deck), "printed", {}, ranks);
      EXPECT_EQ(faults_of(again), "");
      EXPECT_EQ(again.deck, parsed.deck);
      EXPECT_TRUE(again.resolved.empty() || again.resolved[0].starts_with("note:")) << again.resolved[0];
      EXPECT_EQ(print_deck(again.deck), print_deck(parsed.deck));
    }
  }
}

/// A random value that the key accepts.
void randomise(const Key& key, Deck& deck, std::mt19937_64& random) {
  auto pick = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)); };
  const std::string texts[] = {"a",           "runs/x y", "quote\"back\\slash", "tab\tnew\nline\x01", "gr\xc3\xbc\xc3\x9f",
                               "#no comment", "'",        "1979-05-27"};
  for (int tries = 0; tries < 1000; ++tries) {
    Literal literal;
    if (key.type == KeyType::boolean || key.type == KeyType::toggle) {
      literal.value = pick(2) == 1;
    } else if (key.type == KeyType::real) {
      // Any bits that make a number in range: subnormal ones and 17-digit ones included.
      double v = pick(2) ? std::bit_cast<double>(random()) : std::ldexp(static_cast<double>(random()), -64);
      v = std::abs(v);
      // Few of those lie in narrow limits.
      if (tries > 10 && key.limits.least && key.limits.most)
        v = *key.limits.least + std::ldexp(static_cast<double>(random()), -64) * (*key.limits.most - *key.limits.least);
      literal.value = v;
    } else if (key.type == KeyType::bytes) {
      literal.value = fmt::format("{} {}", 1 + pick(std::int64_t{1} << 50), pick(2) ? "B" : "KiB");
    } else if (key.type == KeyType::duration) {
      literal.value = fmt::format("{} {}", 1 + pick(300), pick(2) ? "s" : "min");
    } else if (key.type == KeyType::texts) {
      std::vector<std::string> list;
      for (std::int64_t n = pick(4); n > 0; --n) list.push_back(texts[pick(std::size(texts))]);
      literal.value = list;
    } else if (key.type == KeyType::groups) {
      std::vector<OptimizerGroup> list;
      for (std::int64_t n = pick(3); n > 0; --n) {
        list.push_back({.tensors = {texts[pick(std::size(texts))], "*"}});
        if (pick(2)) list.back().learning_rate = std::ldexp(static_cast<double>(random()), -64);
        if (pick(2) || !list.back().learning_rate) list.back().weight_decay = static_cast<double>(pick(1000));
        if (pick(2)) {
          UpdateKeys update = default_update("muon");
          update.beta1 = std::ldexp(static_cast<double>(random()), -64), update.muon_scale = MuonScale::original;
          list.back().update = update, list.back().given = {"beta1", "muon_scale"};
        }
      }
      literal.value = list;
    } else if (key.type == KeyType::phases) {
      std::vector<RampPhase> list;
      for (std::int64_t n = pick(3); n > 0; --n) {
        list.push_back({.until_step = 1 + pick(1 << 20)});
        if (pick(2)) list.back().global = 1 + pick(1 << 20);
        if (pick(2) || list.back().global == 0) list.back().sequence_length = 1 + pick(1 << 20);
      }
      literal.value = list;
    } else if (key.type == KeyType::kinds) {
      std::vector<KindKeys> list;
      for (std::int64_t n = pick(3); n > 0; --n) {
        list.push_back({.name = std::string(1, static_cast<char>('A' + pick(26)))});
        if (pick(2)) list.back().window = pick(1 << 20);
        if (pick(2))
          list.back().positions = PositionMode::none;
        else if (pick(2))
          list.back().rope_theta = 2 + std::ldexp(static_cast<double>(random()), -60), list.back().rope_scaling = RopeMode::none;
      }
      literal.value = list;
    } else if (key.type == KeyType::paths) {
      std::vector<std::string> list;
      for (std::int64_t n = 1 + pick(3); n > 0; --n) list.push_back(texts[pick(std::size(texts))]);
      literal.value = list;
    } else if (key.type == KeyType::reals) {
      std::vector<double> list;
      for (std::int64_t n = pick(4); n > 0; --n) list.push_back(std::ldexp(static_cast<double>(random()), -60));
      literal.value = list;
    } else if (key.type == KeyType::integers) {
      std::vector<std::int64_t> list;
      for (std::int64_t n = pick(4); n > 0; --n) list.push_back(1 + pick(1 << 20));
      literal.value = list;
    } else if (key.type != KeyType::text) {
      literal.value = pick(std::int64_t{1} << pick(41));
    } else if (!key.choices.empty()) {
      literal.value = std::string(key.choices[static_cast<std::size_t>(pick(static_cast<std::int64_t>(key.choices.size())))]);
    } else {
      literal.value = texts[pick(std::size(texts))];
    }
    bool is_auto = false;
    Deck trial = deck;
    if (assign(key, literal, trial, is_auto).empty()) {
      deck = trial;
      return;
    }
  }
  FAIL() << "no valid value was found for " << key.name;
}

// Each key in turn takes random values; whenever the rules between keys allow the deck, it must survive printing and parsing bit for bit.
TEST(Print, RandomDecksRoundTrip) {
  std::mt19937_64 random(test::Sample::seed());
  const Deck base = parse_small().deck;
  int valid = 0;
  const int rounds = test::Sample::cases(3, 12);
  for (const Key& key : deck_keys()) {
    for (int round = 0; round < rounds; ++round) {
      Deck deck = base;
      randomise(key, deck, random);
      if (HasFatalFailure()) return;
      std::string text = print_deck(deck);
      ParsedDeck parsed = parse_deck_text(text, "printed", {}, 0);
      // Rules between keys may refuse the value, but no key may refuse its own printed form.
      for (const Fault& f : parsed.faults) {
        EXPECT_EQ(f.message.find("expected"), std::string::npos) << f.str();
        EXPECT_EQ(f.message.find("out of range"), std::string::npos) << f.str();
        EXPECT_NE(f.key, "") << f.str();
      }
      if (!parsed.faults.empty()) continue;
      ++valid;
      // Zero means auto for some keys, and the parser resolves it; steps take the place of a ratio.
      if (deck.learning_rate.warmup_ratio > 0 || deck.model.head_dim == 0 || (deck.model.experts > 0 && deck.model.expert_ff_width == 0))
        continue;
      deck.optimizer.warms_up = parsed.deck.optimizer.warms_up;  // follows from run.steps
      EXPECT_EQ(parsed.deck, deck) << text;
      EXPECT_EQ(deck_hash(parsed.deck), deck_hash(deck));
    }
  }
  EXPECT_GT(valid, 25 * rounds) << test::Sample::describe();
}

TEST(Print, HashSeesEveryKey) {
  std::mt19937_64 random(8);
  const Deck base = parse_small().deck;
  for (const Key& key : deck_keys()) {
    Deck deck = base;
    for (int i = 0; i < 50 && deck == base; ++i) randomise(key, deck, random);
    if (deck == base) continue;  // keys with one legal value
    EXPECT_NE(deck_hash(deck), deck_hash(base)) << key.name;
    EXPECT_EQ(deck_identity(deck) != deck_identity(base), key.identity) << key.name;
  }
}

TEST(Print, IdentityIsTheTrainedFunctionNotItsLayout) {
  Hash128 identity = deck_identity(parse_small().deck);
  EXPECT_EQ(deck_identity(parse_small({"zero.stage=3", "run.output_dir=x", "checkpoint.every=5", "run.threads=2"}, 4).deck), identity);
  for (std::string change : {"model.layers=3", "batch.global=32", "batch.micro=2", "batch.sequence_length=16", "optimizer.beta2=0.99",
                             "learning_rate.warmup_steps=1", "precision.compute=fp32", "run.seed=2", "run.steps=9", "run.reproducible=true",
                             "run.init=models/x"}) {
    EXPECT_NE(deck_identity(parse_small({change}).deck), identity) << change;
  }
}

TEST(Print, AKeyThatCameLaterLeavesTheIdentityOfEarlierRuns) {
  const Deck deck = parse_small().deck;
  const std::set<std::string_view> later = {"run.init",
                                            "batch.ramp",
                                            "data.document_mask",
                                            "data.packing",
                                            "data.too_long",
                                            "model.freeze",
                                            "model.window",
                                            "model.positions",
                                            "model.learned_positions",
                                            "model.pattern",
                                            "model.kinds",
                                            "model.norm_placement",
                                            "model.norm_form",
                                            "model.wide_qk_norm",
                                            "model.activation",
                                            "model.gate_limit",
                                            "model.attention_out_bias",
                                            "model.attention_sinks",
                                            "model.rope_truncate",
                                            "model.rope_short_factors",
                                            "model.rope_long_factors",
                                            "model.expert_bias",
                                            "model.dense_layers",
                                            "model.shared_gate",
                                            "model.router_scores",
                                            "model.router_scale",
                                            "model.expert_groups",
                                            "model.groups_per_token",
                                            "model.gated",
                                            "model.mlp_bias",
                                            "model.embedding_scale",
                                            "model.residual_scale",
                                            "model.attention_scale",
                                            "model.attention_softcap",
                                            "model.head_bias",
                                            "model.logit_scale",
                                            "model.logit_softcap",
                                            "model.rope_beta_fast",
                                            "model.rope_beta_slow",
                                            "model.rope_attention_factor",
                                            "model.rotary_fraction",
                                            "model.rope_pairs",
                                            "lora.rank",
                                            "lora.alpha",
                                            "lora.dropout",
                                            "lora.targets",
                                            "lora.modules_to_save",
                                            "lora.scaling",
                                            "lora.init",
                                            "optimizer.groups",
                                            "optimizer.bias_correction",
                                            "optimizer.momentum",
                                            "optimizer.moments",
                                            "optimizer.moments_rounding",
                                            "optimizer.nesterov",
                                            "optimizer.min_trust_ratio",
                                            "optimizer.max_trust_ratio",
                                            "optimizer.decay_rate",
                                            "optimizer.update_clipping",
                                            "optimizer.newton_schulz",
                                            "optimizer.muon_scale",
                                            "optimizer.freeze_step",
                                            "data.weights",
                                            "run.epochs",
                                            "learning_rate.warmup_ratio",
                                            "learning_rate.warmup_min_lr",
                                            "learning_rate.warmup_min_ratio",
                                            "learning_rate.decay_type",
                                            "precision.fp8",
                                            "precision.fp8_skip",
                                            "precision.fp8_history",
                                            "precision.fp8_margin",
                                            "zero.quantized_weights",
                                            "zero.quantized_gradients"};
  // And sections that did.
  const auto is_later = [&](std::string_view key) {
    return later.contains(key) || key.starts_with("learning_rate.one_cycle.") || key.starts_with("learning_rate.lr_range_test.") ||
           key.starts_with("precision.loss_scale.") || key.starts_with("zero.error_feedback.") || key.starts_with("preference.");
  };
  std::string text;
  for (const Key& key : deck_keys())
    if (key.identity && !is_later(key.name)) text += fmt::format("{} = {}\n", key.name, value_text(key, deck));
  EXPECT_EQ(deck_identity(deck), hash_text(text));
  EXPECT_EQ(identity_differences(deck, parse_small({"run.init=x"}).deck), (std::vector<std::string>{"run.init = \"\", here \"x\""}));
}

// docs/deck.md is `tessera deck reference > docs/deck.md`.
TEST(Print, ReferencePageIsCommitted) { EXPECT_EQ(read_text(std::string(TESSERA_SOURCE_DIR) + "/docs/deck.md"), deck_reference()); }

}  // namespace
}  // namespace tessera::print_test
