// tessera plan --json: the bytes that it promises are those that a run takes.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "../model/random_models.hpp"
#include "../plan_alone.hpp"
#include "memory/runtime.hpp"
#include "program.hpp"
#include "train/engine/engine.hpp"

namespace tessera {
namespace {

constexpr int threads = 2;

nlohmann::json plan_of(const test::Scratch& scratch, std::vector<std::string> arguments) {
  test::spill(scratch / "tiny.toml", test::tiny_deck_text);
  std::vector<std::string> all{"plan", scratch / "tiny.toml", "--json", "--threads", std::to_string(threads)};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const auto done = test::run_program(scratch, all);
  EXPECT_EQ(done.status, 0) << done.err;
  return nlohmann::json::parse(done.out);
}

TEST(PlanCommand, PromisesTheBytesThatAnEngineUses) {
  const test::Scratch scratch;
  const std::vector<std::vector<std::string>> variants = {{},
                                                          {"precision.compute=bf16"},
                                                          {"run.reproducible=true"},
                                                          {"model.qk_norm=true", "model.tied=true"},
                                                          {"batch.micro=4", "kernels.loss_chunk=7"},
                                                          {"model.qkv_bias=true", "batch.sequence_length=33"},
                                                          {"kernels.pack_weights=true"}};
  for (const auto& overrides : variants) {
    const auto plan = plan_of(scratch, overrides);
    const Engine engine(test::plan_alone(test::tiny_deck(overrides)));
    std::int64_t total = 0;
    for (std::size_t t = 0; t < tier_count; ++t) {
      const std::string tier(name_of(static_cast<Tier>(t)));
      EXPECT_EQ(plan["tiers"].contains(tier) ? plan["tiers"][tier]["bytes"].get<std::int64_t>() : 0, engine.used_bytes()[t]) << tier;
      total += engine.used_bytes()[t];
    }
    EXPECT_EQ(plan["bytes_per_rank"], total);
    EXPECT_EQ(plan["schedule_hash"], engine.schedule().hash().hex()) << "the plan is of another schedule than the run's";
  }
}

TEST(PlanCommand, MoreRanksNeedLessEach) {
  const test::Scratch scratch;
  std::int64_t before = 0;
  for (int stage : {0, 1, 2, 3}) {
    // A model wide enough that blocks of padding do not hide what sharding saves.
    const auto plan = plan_of(scratch, {fmt::format("zero.stage={}", stage), "model.width=256", "model.ff_width=512", "model.layers=6",
                                        "zero.max_reuse_distance=0", "zero.prefetch_bucket_size=0", "zero.param_persistence_threshold=0",
                                        "batch.sequence_length=4", "--ranks", "5"});
    EXPECT_EQ(plan["zero_stage"], stage);
    EXPECT_EQ(plan["micro_batches_per_rank"], 6);
    const std::int64_t bytes = plan["bytes_per_rank"];
    if (stage > 0) {
      EXPECT_LT(bytes, before) << "stage " << stage;
    }
    before = bytes;
  }
}

TEST(PlanCommand, FaultsOfTheDeckAreAllShown) {
  const test::Scratch scratch;
  test::spill(scratch / "tiny.toml", test::tiny_deck_text);
  const auto done =
      test::run_program(scratch, {"plan", scratch / "tiny.toml", "model.widht=3", "zero.stage=7", "batch.global=7", "batch.micro=2"});
  EXPECT_EQ(done.status, 2);
  for (const char* part : {"model.width", "zero.stage", "batch.global"}) EXPECT_TRUE(test::has(done.err, part)) << done.err;
}

TEST(PlanCommand, PrintsTheScheduleOnRequest) {
  const test::Scratch scratch;
  test::spill(scratch / "tiny.toml", test::tiny_deck_text);
  const auto done = test::run_program(
      scratch, {"plan", scratch / "tiny.toml", "zero.stage=3", "zero.param_persistence_threshold=0", "--ranks", "2", "--schedule"});
  EXPECT_EQ(done.status, 0) << done.err;
  for (const char* part : {"gather layers.0 (forward)", "reduce layers.1", "optimizer head", "program train"})
    EXPECT_TRUE(test::has(done.out, part)) << part;
}

// Of processor time, which depends on neither the machine's speed nor its load as the time of day does. Five times the layers take five
// times as long, or 25 times where the work grows with their square.
TEST(PlanCommand, GrowsWithTheLayersAndNotWithTheirSquare) {
  const test::Scratch scratch;
  test::spill(scratch / "tiny.toml", test::tiny_deck_text);
  auto seconds = [&](int layers) {
    const auto done = test::run_program(scratch, {"plan", scratch / "tiny.toml", fmt::format("model.layers={}", layers), "zero.stage=3",
                                                  "zero.param_persistence_threshold=0", "--ranks", "2"});
    EXPECT_EQ(done.status, 0) << done.err;
    return done.cpu_seconds;
  };
  const double few = seconds(600), many = seconds(3000);
  EXPECT_LT(many, 15 * few);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  tessera::KernelRuntime runtime(tessera::threads);
  return RUN_ALL_TESTS();
}
