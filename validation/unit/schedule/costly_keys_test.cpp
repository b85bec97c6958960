// Keys that cost a part of a step: each is found with the figure that the simulator has for the deck without it, and nothing else is said.
#include "schedule/simulate/costly_keys.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "deck/deck.hpp"
#include "schedule/build/request.hpp"

namespace tessera::costly_keys_test {
namespace {

const LimitsOf no_limits = [](const Deck&) { return MemoryLimits{}; };

struct Found {
  double seconds = 0;
  std::vector<CostlyKey> keys;
};

Found found(std::vector<std::string> overrides, int ranks = 8) {
  const std::string inputs = std::string(TESSERA_SOURCE_DIR) + "/inputs/";
  overrides.insert(overrides.begin(), {"run.device=cuda", "zero.stage=3", "activation.recompute=none"});
  const Deck deck = require_deck(parse_deck(inputs + "train_7b.toml", overrides, ranks));
  const MachineProfile machine = require_machine(inputs + "machines/h100_8.toml");
  const Placement placement{.mesh = make_mesh(deck, ranks), .ranks_per_node = 8};
  const auto now = choice_as_is(deck, machine, placement, no_limits);
  return {now->prediction.step.seconds,
          costly_keys(request_for(deck, placement.mesh, 0, Purpose::training), now->prediction, machine, placement, no_limits)};
}

/// A key that is found, whose change gives the step of the deck with `better`.
void expect_found(const std::string& key, const std::string& change, const std::string& worse, const std::string& better,
                  const std::vector<std::string>& more = {"model.layers=8"}) {
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

TEST(CostlyKeys, OfADeckThatIsFastAsItIsThereAreNone) { EXPECT_TRUE(found({}).keys.empty()); }

TEST(CostlyKeys, PrefetchOverlapAndBucketsAreFound) {
  expect_found("zero.prefetch_bucket_size = 0", "zero.prefetch_bucket_size=auto", "zero.prefetch_bucket_size=0",
               "zero.prefetch_bucket_size=auto");
  expect_found("zero.overlap_comm = false", "zero.overlap_comm=auto", "zero.overlap_comm=false", "zero.overlap_comm=auto");
  expect_found("zero.reduce_bucket_size = 100000", "zero.reduce_bucket_size=500000000", "zero.reduce_bucket_size=100000",
               "zero.reduce_bucket_size=500000000", {"model.layers=1", "run.device=host"});
  EXPECT_TRUE(found({"zero.reduce_bucket_size=100000", "model.layers=8"}).keys.empty()) << "GPUs move shards whole";
}

TEST(CostlyKeys, ABatchThatMakesEachGatherServeLittleIsFound) {
  // Between nodes a gather takes longer than the passes of one sequence.
  const Found of = found({"batch.micro=1", "batch.global=128", "batch.sequence_length=512"}, 32);
  ASSERT_FALSE(of.keys.empty());
  EXPECT_TRUE(of.keys[0].change.starts_with("batch.micro=")) << of.keys[0].change;
  EXPECT_NE(of.keys[0].key.find("gathered 8 times a step"), std::string::npos) << of.keys[0].key;
}

}  // namespace
}  // namespace tessera::costly_keys_test
