// tessera consolidate: what it prints, and that its memory does not grow with the model; and what no command takes for a model.
#include <gtest/gtest.h>

#include <limits>

#include "../../unit/altered_checkpoint.hpp"
#include "../../unit/model/random_models.hpp"
#include "../../unit/sharded_checkpoint.hpp"
#include "program.hpp"

namespace tessera::consolidate_test {
namespace {

TEST(ConsolidateCommand, SaysWhatItWrote) {
  const test::Scratch scratch;
  const std::string folder = test::write_sharded(scratch.path(), test::tiny_deck(), 2);
  const auto done = test::run_program(scratch, {"consolidate", folder, scratch / "out", "--dtype", "bf16"});
  EXPECT_EQ(done.status, 0) << done.err;
  for (const char* part : {"21 tensors", "model.safetensors", "config.json"}) EXPECT_TRUE(test::has(done.out, part)) << done.out;
  EXPECT_TRUE(test::fs::exists(scratch / "out/model.safetensors"));
}

TEST(ConsolidateCommand, MemoryDoesNotGrowWithTheModel) {
  const test::Scratch scratch;
  const std::string small = test::write_sharded(scratch / "small", test::tiny_deck(), 1);
  // 100 MiB of weights; one tensor of 32 MiB.
  const std::string large = test::write_sharded(scratch / "large",
                                                test::tiny_deck({"model.width=512", "model.vocab=16384", "model.layers=4", "model.heads=8",
                                                                 "model.kv_heads=8", "model.head_dim=64", "model.ff_width=1024"}),
                                                2);
  const auto a = test::run_program(scratch, {"consolidate", small, scratch / "a"});
  const auto b = test::run_program(scratch, {"consolidate", large, scratch / "b"});
  ASSERT_EQ(a.status, 0) << a.err;
  ASSERT_EQ(b.status, 0) << b.err;
  EXPECT_GT(test::fs::file_size(scratch / "b/model.safetensors"), 95u << 20);
#ifndef TESSERA_SANITIZE  // whose own memory grows with every access
  EXPECT_LT(b.peak_bytes, std::int64_t{256} << 20);
  EXPECT_LT(b.peak_bytes - a.peak_bytes, std::int64_t{24} << 20) << "a chunk is 1 MiB";
#endif
}

TEST(ConsolidateCommand, AModelThatIsNoNumberIsNotWritten) {
  const test::Scratch scratch;
  const std::string folder = test::write_sharded(scratch.path(), test::tiny_deck(), 2);
  test::alter_checkpoint(folder, "master", 1, 5, std::numeric_limits<float>::quiet_NaN());
  for (const char* format : {"safetensors", "hdf5"}) {
    const auto done = test::run_program(scratch, {"consolidate", folder, scratch / format, "--format", format});
    EXPECT_EQ(done.status, 8) << done.err;
    EXPECT_TRUE(test::has(done.err, "master of layers.0.attention.norm, element 5, is nan")) << done.err;
    const std::string out = scratch / format;
    EXPECT_FALSE(test::fs::exists(out + "/model.safetensors") || test::fs::is_regular_file(out)) << format;
  }
  const auto verified = test::run_program(scratch, {"verify", folder});
  EXPECT_EQ(verified.status, 4) << verified.out;
  EXPECT_TRUE(test::has(verified.out, "element 5 of the tensor, is nan")) << verified.out;
}

// A loss that is no number is no perfect one: 3e38 is a number, and what comes of it is none.
TEST(EvaluateCommand, SaysThatALossIsNotFinite) {
  const test::Scratch scratch;
  const std::string folder = test::write_sharded(scratch.path(), test::tiny_deck(), 1);
  const std::vector<std::uint16_t> tokens(400, 7);
  test::spill(scratch / "data.bin", {reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size()});
  const std::vector<std::string> plain = {"evaluate", folder, "--data", scratch / "data.bin", "--device", "host"};
  const auto before = test::run_program(scratch, plain);
  EXPECT_EQ(before.status, 0) << before.err;
  struct Case {
    float value;
    int unit;  ///< of the token that the file has, of a layer's norm, of the head's
    std::int64_t element;
  };
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  bool json = false;
  for (const auto& [value, unit, element] : {Case{nan, 0, 7 * 32 + 3}, {nan, 2, 5}, {infinity, 1, 5}, {3e38f, 1, 5}, {infinity, 3, 5}}) {
    const std::string altered = test::write_sharded(scratch / fmt::format("{}-{}", value, unit), test::tiny_deck(), 1);
    test::alter_checkpoint(altered, "master", unit, element, value);
    std::vector<std::string> arguments = plain;
    arguments[1] = altered;
    if (json = !json; json) arguments.push_back("--json");
    const auto done = test::run_program(scratch, arguments);
    EXPECT_EQ(done.status, 8) << value << " in unit " << unit << ": " << done.out << done.err;
    EXPECT_TRUE(test::has(done.err, "is not finite")) << done.err;
    EXPECT_EQ(done.out, "");
  }
}

// A moment that is far too large makes weights of it a step before a loss shows it: what the save would hold is looked at.
TEST(TrainCommand, SavesNoStateThatIsNoNumber) {
  const test::Scratch scratch;
  std::vector<std::uint16_t> tokens(400);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint16_t>(i * 7 % 61);
  test::spill(scratch / "data.bin", {reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size()});
  test::spill(scratch / "deck.toml", test::tiny_deck_text);
  const auto train = [&](const char* run, int steps, const std::string& more) {
    return test::run_program(
        scratch, {"train", scratch / "deck.toml", "data.train=" + scratch / "data.bin", "batch.global=4", "optimizer.learning_rate=0.1",
                  "learning_rate.schedule=constant", "learning_rate.warmup_steps=0", "checkpoint.every=1", "run.threads=1",
                  "run.output_dir=" + scratch / run, fmt::format("run.steps={}", steps), more});
  };
  for (const char* ways : {"run.lanes=inline", "checkpoint.async=true"}) {
    const auto begun = train(ways, 2, ways);
    ASSERT_EQ(begun.status, 0) << begun.err;
    const std::string folder = scratch / ways + "/checkpoints/";
    test::alter_checkpoint(folder + "step-00000002", "adam_m", 1, 5, 3e38f);
    const auto gone_on = train(ways, 4, ways);
    EXPECT_EQ(gone_on.status, 8) << ways << gone_on.err;
    EXPECT_TRUE(test::has(gone_on.err, "values that are not finite are not saved")) << gone_on.err;
    EXPECT_TRUE(test::has(gone_on.err, "master of layers.0.attention.norm, element 5 of the tensor, is ")) << gone_on.err;
    EXPECT_TRUE(test::has(gone_on.err, "step-00000002")) << gone_on.err;
    EXPECT_FALSE(test::fs::exists(folder + "step-00000003")) << ways;
  }
}

// A token that validation has alone, and whose row of the embedding is too large: steps are as ever, the validation's loss is none.
TEST(TrainCommand, SaysThatAValidationLossIsNotFinite) {
  const test::Scratch scratch;
  std::vector<std::uint16_t> tokens(400);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint16_t>(i * 7 % 60);
  test::spill(scratch / "data.bin", {reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size()});
  tokens[5] = 60;
  test::spill(scratch / "val.bin", {reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size()});
  test::spill(scratch / "deck.toml", test::tiny_deck_text);
  const auto train = [&](int steps, const char* evaluates) {
    return test::run_program(
        scratch, {"train", scratch / "deck.toml", "data.train=" + scratch / "data.bin", "data.validation=" + scratch / "val.bin",
                  "batch.global=4", "precision.compute=bf16", "learning_rate.schedule=constant", "learning_rate.warmup_steps=0",
                  "run.threads=1", "run.output_dir=" + scratch / "run", fmt::format("run.steps={}", steps), evaluates});
  };
  ASSERT_EQ(train(2, "evaluate.every=0").status, 0);
  test::alter_checkpoint(scratch / "run/checkpoints/step-00000002", "master", 0, 60 * 32 + 3, 3.4e38f);
  // In bf16 it is infinite.
  const auto gone_on = train(4, "evaluate.every=3");
  EXPECT_EQ(gone_on.status, 8) << gone_on.err;
  for (const char* part : {"step 3: the validation loss is not finite", "val.bin", "step-00000002"})
    EXPECT_TRUE(test::has(gone_on.err, part)) << gone_on.err;
  EXPECT_FALSE(test::has(test::slurp(scratch / "run/metrics.jsonl"), "val_loss"));
  EXPECT_FALSE(test::fs::exists(scratch / "run/checkpoints/step-00000003"));
}

TEST(ConsolidateCommand, BadUseHasTheUsageStatus) {
  const test::Scratch scratch;
  EXPECT_EQ(test::run_program(scratch, {"consolidate"}).status, 2);
  EXPECT_EQ(test::run_program(scratch, {"consolidate", "a", "b", "--format", "pickle"}).status, 2);
  const auto missing = test::run_program(scratch, {"consolidate", scratch / "none", scratch / "out"});
  EXPECT_EQ(missing.status, 4);
  EXPECT_TRUE(test::has(missing.err, scratch / "none")) << missing.err;
}

}  // namespace
}  // namespace tessera::consolidate_test
