// Keys that cost a part of a step: each is found with the figure that the simulator has for the deck without it, and nothing else is said.
#include "schedule/simulate/costly_keys.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "deck/deck.hpp"
#include "schedule/build/request.hpp"

namespace tessera::costly_keys_test {
namespace {

const LimitsOf no_limits = [](const Deck&) { return MemoryLimits{}; };

struct Found {
  Deck deck;
  double seconds = 0;
  std::int64_t bytes = 0;
  std::vector<CostlyKey> keys;
  std::optional<CostlyKey> together;
};

Found found(std::vector<std::string> overrides, int ranks = 8, const LimitsOf& limits = no_limits) {
  const std::string inputs = std::string(TESSERA_SOURCE_DIR) + "/inputs/";
  overrides.insert(overrides.begin(), {"run.device=cuda", "zero.stage=3", "activation.recompute=none"});
  const Deck deck = require_deck(parse_deck(inputs + "train_7b.toml", overrides, ranks));
  const MachineProfile machine = require_machine(inputs + "machines/h100_8.toml");
  const Placement placement{.mesh = make_mesh(deck, ranks), .ranks_per_node = 8};
  const auto now = choice_as_is(deck, machine, placement, limits);
  const StepAdvice advice = advise(request_for(deck, placement.mesh, 0, Purpose::training), now->prediction, machine, placement, limits);
  return {deck, now->prediction.step.seconds, memory_bytes(now->bytes), advice.keys, advice.together};
}

/// A key that is found, whose change gives the step of the deck with `better`.
void expect_found(const std::string& key, const std::string& change, const std::string& worse, const std::string& better,
                  const std::vector<std::string>& more = {"model.layers=8", "batch.sequence_length=1024"}) {
  const auto with = [&](const std::string& one) {
    std::vector<std::string> overrides = more;
    overrides.push_back(one);
    return found(overrides);
  };
  const Found of = with(worse);
  const auto costly = std::ranges::find(of.keys, key, &CostlyKey::key);
  ASSERT_NE(costly, of.keys.end()) << worse;
  EXPECT_EQ(costly->change, change);
  EXPECT_EQ(costly->seconds, with(better).seconds);
  EXPECT_LT(costly->seconds, 0.98 * of.seconds);
}

TEST(CostlyKeys, OfADeckThatIsFastAsItIsThereAreNone) { EXPECT_TRUE(found({"batch.micro=16", "batch.global=128"}).keys.empty()); }

// Every change is allowed, fits, and gives the step that is said, alone and together.
TEST(CostlyKeys, ChangesAreWhatTheyAreSaidToBe) {
  const std::vector<std::string> slow{
      "model.layers=8", "batch.sequence_length=1024",         "batch.micro=2",          "zero.prefetch_bucket_size=0",
      "zero.stage=3",   "zero.offload_optimizer.device=host", "zero.overlap_comm=false"};
  const Found of = found(slow);
  ASSERT_GE(of.keys.size(), 3u);
  const auto with = [&](const std::string& changes) {
    std::vector<std::string> overrides = slow;
    std::istringstream words(changes);
    for (std::string word; words >> word;) overrides.push_back(word);
    return found(overrides).seconds;
  };
  for (std::size_t i = 0; i < 3; ++i) EXPECT_DOUBLE_EQ(with(of.keys[i].change), of.keys[i].seconds) << of.keys[i].change;
  EXPECT_TRUE(std::ranges::is_sorted(of.keys, {}, &CostlyKey::seconds));
  ASSERT_TRUE(of.together);
  EXPECT_LT(of.together->seconds, of.keys.front().seconds);
  EXPECT_DOUBLE_EQ(with(of.together->change), of.together->seconds) << of.together->change;
}

TEST(CostlyKeys, WhatDoesNotFitIsNotSaid) {
  const std::vector<std::string> small{"model.layers=8", "activation.recompute=full"};
  const Found roomy = found(small);
  EXPECT_NE(std::ranges::find(roomy.keys, "activation.recompute=none", &CostlyKey::change), roomy.keys.end());
  const LimitsOf tight = [](const Deck& deck) {
    MemoryLimits limits;
    limits[static_cast<std::size_t>(MemoryKind::device)] =
        MemoryLimit{deck.activation.recompute == Recompute::full ? 1LL << 40 : 1, "a test"};
    return limits;
  };
  for (const CostlyKey& key : found(small, 8, tight).keys) EXPECT_FALSE(key.change.starts_with("activation.recompute=")) << key.change;
}

// Where all that is kept does not fit and all that is made again need not be.
TEST(CostlyKeys, RecomputeByTheMemoryIsFound) {
  const std::vector<std::string> slow{"model.layers=8", "activation.recompute=full", "batch.micro=16", "batch.global=128"};
  const auto bytes_with = [&](const char* recompute) {
    std::vector<std::string> keys = slow;
    keys.push_back(std::string("activation.recompute=") + recompute);
    return found(keys).bytes;
  };
  const std::int64_t least = bytes_with("full"), most = bytes_with("none"), limit = (least + most) / 2;
  ASSERT_LT(least, most);
  const Found of = found(slow, 8, [&](const Deck&) {
    MemoryLimits limits;
    limits[static_cast<std::size_t>(MemoryKind::device)] = MemoryLimit{limit, "a test"};
    return limits;
  });
  EXPECT_NE(std::ranges::find(of.keys, "activation.recompute=auto", &CostlyKey::change), of.keys.end());
}

// Of a pipeline all stages are played, and the change gives the step that is said.
TEST(CostlyKeys, AnOrderOfAPipelineIsFound) {
  const std::vector<std::string> slow{"model.layers=8", "batch.sequence_length=1024", "mesh.pp=4", "batch.micro=8", "batch.global=64",
                                      "zero.stage=1"};
  const Found of = found(slow);
  ASSERT_FALSE(of.keys.empty());
  const auto named = [&](std::string_view key) {
    return std::ranges::any_of(of.keys, [&](const CostlyKey& k) { return k.change.starts_with(key); });
  };
  EXPECT_TRUE(named("batch.micro=")) << "4 micro-batches leave stages much to wait for";
  EXPECT_TRUE(named("pipeline.schedule="));
  for (const CostlyKey& key : of.keys) {
    std::vector<std::string> with = slow;
    std::istringstream words(key.change);
    for (std::string word; words >> word;) with.push_back(word);
    EXPECT_DOUBLE_EQ(found(with).seconds, key.seconds) << key.change;
  }
}

TEST(CostlyKeys, ALimitThatNothingMeetsIsSaid) {
  const auto said = [](const std::string& live) {
    const Deck deck = found({"model.layers=2", "zero.max_live_parameters=" + live}).deck;
    return idle_limit(request_for(deck, make_mesh(deck, 8), 0, Purpose::training));
  };
  EXPECT_NE(said("9000000000").find("zero.max_live_parameters = 9000000000 has no effect"), std::string::npos);
  EXPECT_EQ(said("1000000"), "") << "it keeps what is gathered small";
  EXPECT_EQ(said("1000000000"), "") << "the default: nobody wrote it";
}

TEST(CostlyKeys, PrefetchOverlapAndBucketsAreFound) {
  expect_found("zero.prefetch_bucket_size = 0", "zero.prefetch_bucket_size=auto", "zero.prefetch_bucket_size=0",
               "zero.prefetch_bucket_size=auto");
  expect_found("zero.overlap_comm = false", "zero.overlap_comm=auto", "zero.overlap_comm=false", "zero.overlap_comm=auto");
  expect_found("zero.reduce_bucket_size = 100000", "zero.reduce_bucket_size=500000000", "zero.reduce_bucket_size=100000",
               "zero.reduce_bucket_size=500000000", {"model.layers=1", "run.device=host"});
  const Found of = found({"zero.reduce_bucket_size=100000", "model.layers=8"});
  for (const CostlyKey& key : of.keys) EXPECT_FALSE(key.change.starts_with("zero.reduce_bucket_size")) << "GPUs move shards whole";
}

TEST(CostlyKeys, ABatchThatMakesEachGatherServeLittleIsFound) {
  // Between nodes a gather takes longer than the passes of one sequence.
  const Found of = found({"batch.micro=1", "batch.global=128", "batch.sequence_length=512"}, 32);
  const auto micro = std::ranges::find_if(of.keys, [](const CostlyKey& key) { return key.change.starts_with("batch.micro="); });
  ASSERT_NE(micro, of.keys.end());
  EXPECT_NE(micro->key.find("gathered 8 times a step"), std::string::npos) << micro->key;
}

}  // namespace
}  // namespace tessera::costly_keys_test
